"""Answers with a SavedModel, as TensorFlow Serving's REST API does (https://www.tensorflow.org/tfx/serving/api_rest).

    python -m tests.cloud.vertex.predictor

The variables AIP_STORAGE_URI, AIP_HTTP_PORT, AIP_HEALTH_ROUTE and AIP_PREDICT_ROUTE say which, and where.
"""

import base64
import http.server
import json
import os

import tensorflow as tf


class _Handler(http.server.BaseHTTPRequestHandler):
    signatures: dict
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_GET(self):
        self._send(200 if self.path == os.environ["AIP_HEALTH_ROUTE"] else 404, {})

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path != os.environ["AIP_PREDICT_ROUTE"]:
            return self._send(404, {"error": f"{self.path} is not served"})
        try:
            return self._send(200, _predict(self.signatures, json.loads(body)))
        except (ValueError, TypeError, KeyError, tf.errors.OpError) as error:
            return self._send(400, {"error": f"{type(error).__name__}: {error}"})

    def log_message(self, *arguments):
        pass

    def _send(self, status: int, content: dict) -> None:
        text = json.dumps(content).encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def _predict(signatures, body: dict) -> dict:
    name = body.get("signature_name", "serving_default")
    if name not in signatures:
        raise ValueError(f"there is no signature {name!r}, only {', '.join(sorted(signatures))}")
    signature = signatures[name]
    _, wanted = signature.structured_input_signature
    instances = body["instances"]
    rows = [each if isinstance(each, dict) and "b64" not in each else {next(iter(wanted)): each} for each in instances]
    inputs = {}
    for key, spec in wanted.items():
        inputs[key] = tf.constant([_decoded(row[key]) for row in rows], dtype=spec.dtype)
    outputs = {key: value.numpy().tolist() for key, value in signature(**inputs).items()}
    columns = {key: [_encoded(key, value) for value in values] for key, values in outputs.items()}
    if len(columns) == 1:
        return {"predictions": next(iter(columns.values()))}
    return {"predictions": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}


def _decoded(value):
    if isinstance(value, dict):
        return base64.b64decode(value["b64"])
    return [_decoded(part) for part in value] if isinstance(value, list) else value


def _encoded(name: str, value):
    if isinstance(value, list):
        return [_encoded(name, part) for part in value]
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()} if name.endswith("_bytes") else value.decode()
    return value


def main() -> None:
    """Serves until it is told to end."""
    model = tf.saved_model.load(os.environ["AIP_STORAGE_URI"])
    handler = type("Handler", (_Handler,), {"signatures": model.signatures, "model": model})
    http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["AIP_HTTP_PORT"])), handler).serve_forever()


if __name__ == "__main__":
    main()
