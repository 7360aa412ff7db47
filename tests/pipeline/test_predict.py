"""Files and the model that serves: one answer each, and a bad file spoils no other."""

import pytest
import tensorflow as tf

from pipeline.errors import PipelineError
from pipeline.predict import Answer, predict


class Brightness(tf.Module):
    """A model that tells light from dark."""

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def serve(self, bytes_inputs):
        light = tf.reduce_mean(tf.cast(tf.io.decode_jpeg(bytes_inputs[0]), tf.float32)) / 255
        label = tf.where(light > 0.5, "light", "dark")
        return {"label": label[tf.newaxis], "probability": tf.maximum(light, 1 - light)[tf.newaxis]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("model"))
    module = Brightness()
    tf.saved_model.save(module, folder, signatures={"serving_default": module.serve})
    return folder


def test_each_file_gets_its_own_answer_in_order(model, tmp_path):
    white, black = (tf.io.encode_jpeg(tf.fill([8, 8, 3], tf.constant(value, tf.uint8))).numpy() for value in (255, 0))
    contents = {"a.jpg": white, "empty.jpg": b"", "text.jpg": b"no picture", "cut.jpg": white[:100], "b.jpg": black}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder.jpg").mkdir()
    names = ["a.jpg", "empty.jpg", "none.jpg", "text.jpg", "folder.jpg", "cut.jpg", "b.jpg", "a.jpg"]
    answers = list(predict(model, [str(tmp_path / name) for name in names]))
    assert [answer.path for answer in answers] == [str(tmp_path / name) for name in names]
    assert answers[0] == answers[7] == Answer(str(tmp_path / "a.jpg"), "light", 1.0)
    assert answers[6] == Answer(str(tmp_path / "b.jpg"), "dark", 1.0)
    assert [answer.error for answer in answers[1:6]] == [
        "the file is empty",
        "cannot be read: No such file or directory",
        "no JPEG image: it is of another kind, cut short or damaged",
        "cannot be read: Is a directory",
        "no JPEG image: it is of another kind, cut short or damaged",
    ]
    assert all(answer.label == "" for answer in answers[1:6])


@pytest.mark.parametrize("content", [None, b"no graph"])
def test_a_model_that_does_not_load_is_named_with_what_to_do(tmp_path, content):
    if content:
        (tmp_path / "saved_model.pb").write_bytes(content)
    with pytest.raises(PipelineError, match=f"the model that serves, {tmp_path}, does not load: .*release rollback"):
        list(predict(str(tmp_path), []))


def test_a_model_without_the_signature_is_named(tmp_path):
    tf.saved_model.save(tf.Module(), str(tmp_path))
    with pytest.raises(PipelineError, match="does not load: it has no signature serving_default"):
        list(predict(str(tmp_path), []))
