"""Asks a SavedModel as Vertex's TensorFlow container would: a program of its own, which imports TensorFlow and nothing of ours.

    python -I probe.py REQUESTS ANSWERS

REQUESTS is JSON: `model`, the folder of the SavedModel, and `bodies`, texts as a client posts them to `:predict`. ANSWERS
becomes one JSON object a line, each written before the next request is read, so that whoever finds this process dead knows
what it died of: first `seconds` to load, `tensorflow` (its version), `modules` (top-level names that are imported) and
`signatures`; then for each body `seconds` and `status` (200, or 400 with an `error`) and what a client gets.
"""

import base64
import json
import sys
import time

SIGNATURE = "serving_default"


def main(requests: str, answers: str) -> None:
    """Answers every body in turn; a request that fails is answered with its error."""
    with open(requests, encoding="utf-8") as stream:
        wanted = json.load(stream)
    started = time.perf_counter()
    import tensorflow as tf

    with open(answers, "w", encoding="utf-8") as stream:

        def tell(**facts):
            stream.write(json.dumps(facts) + "\n")
            stream.flush()

        imported = time.perf_counter()
        try:
            signatures = tf.saved_model.load(wanted["model"]).signatures
            serve = signatures[SIGNATURE]
        except Exception as error:
            tell(error=f"{type(error).__name__}: {_first_line(error)}")
            return
        tell(
            seconds=time.perf_counter() - imported,
            import_seconds=imported - started,
            tensorflow=tf.__version__,
            modules=sorted({name.partition(".")[0] for name in sys.modules}),
            signatures=sorted(signatures),
        )
        for body in wanted["bodies"]:
            asked = time.perf_counter()
            try:
                answer = {"status": 200, **_predict(tf, serve, body)}
            except Exception as error:
                answer = {"status": 400, "error": _first_line(error)}
            tell(seconds=time.perf_counter() - asked, **answer)


def _predict(tf, serve, body: str) -> dict:
    """The row format of TensorFlow Serving's REST API: https://www.tensorflow.org/tfx/serving/api_rest#predict_api."""
    instances = json.loads(body)["instances"]
    inputs = serve.structured_input_signature[1]
    rows = [row if isinstance(row, dict) and row.keys() != {"b64"} else {name: row for name in inputs} for row in instances]
    columns = {name: tf.constant([_decoded(row[name]) for row in rows], spec.dtype) for name, spec in inputs.items()}
    outputs = {name: value.numpy() for name, value in serve(**columns).items()}
    return {
        "predictions": [
            {name: _plain(values[position]) for name, values in outputs.items()} for position in range(len(rows))
        ]
    }


def _decoded(value):
    return base64.b64decode(value["b64"], validate=True) if isinstance(value, dict) else value


def _plain(value):
    """NumPy's values as JSON has them; bytes as text."""
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


if __name__ == "__main__":
    main(*sys.argv[1:])
