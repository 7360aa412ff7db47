"""Answers as an export's smoke set says, without TensorFlow: a container that serves within a tenth of a second.

    python -m tests.cloud.vertex.answering

Of the folder AIP_STORAGE_URI it reads `assets.extra/smoke.json`, or, where there is one, `answers.json` of the same form,
which a test writes for a model that answers otherwise than its trainer. A folder without `variables` is not loaded.
"""

import http.server
import json
import os
import pathlib


class _Handler(http.server.BaseHTTPRequestHandler):
    content: dict
    protocol_version = "HTTP/1.1"
    wbufsize = -1

    def do_GET(self):
        self._send(200 if self.path == os.environ["AIP_HEALTH_ROUTE"] else 404, {})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = {photograph["request"]["bytes_inputs"]["b64"]: photograph for photograph in self.content["photographs"]}
        predictions = []
        for instance in body["instances"]:
            photograph = known[instance["bytes_inputs"]["b64"]]
            predictions.append({"classes": self.content["classes"], "probabilities": photograph["probabilities"]})
        self._send(200, {"predictions": predictions})

    def log_message(self, *arguments):
        pass

    def _send(self, status: int, content: dict) -> None:
        text = json.dumps(content).encode()
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def main() -> None:
    """Serves until it is told to end."""
    folder = pathlib.Path(os.environ["AIP_STORAGE_URI"])
    if not (folder / "variables").is_dir():
        raise SystemExit(f"{folder} holds no weights")
    other = folder / "answers.json"
    content = json.loads((other if other.is_file() else folder / "assets.extra" / "smoke.json").read_text())
    handler = type("Handler", (_Handler,), {"content": content})
    http.server.ThreadingHTTPServer(("127.0.0.1", int(os.environ["AIP_HTTP_PORT"])), handler).serve_forever()


if __name__ == "__main__":
    main()
