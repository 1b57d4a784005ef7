"""A control for a training run: a dataserver that shuffles the rewards among the completions of each request.

    toolkit-rl-dataserver examples/word_problems/rl_data.yaml --port 9000
    python examples/word_problems/shuffled_rewards.py http://127.0.0.1:9000 9001
    toolkit-rl-train configs/rl/word_problems.yaml --set dataserver.config=null \
        --set dataserver.url=http://127.0.0.1:9001 --run-name word_problems_shuffled

It forwards everything to the real dataserver, and assigns the results of a training request to its completions in
another order, which depends only on the request. Held-out completions keep their own results. There is nothing to learn
from such rewards, so a run that improves with them was measured wrongly.
"""

import json
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

_PASSED_ON = ("content-type", "content-encoding", "authorization")


def main() -> None:
    server, port = sys.argv[1], int(sys.argv[2])
    with shuffling_server(server, port) as proxy:
        print(f"mixes up the rewards of {server} on port {port}", flush=True)
        proxy.serve_forever()


@contextmanager
def shuffling_server(server: str, port: int) -> Iterator[ThreadingHTTPServer]:
    """An HTTP server on 127.0.0.1; port 0 picks a free port."""
    with httpx.Client(base_url=server, timeout=120, trust_env=False) as client:

        class Proxy(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer(client.get(self.path, headers=self.passed_on()))

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                self.answer(client.post(self.path, content=body, headers=self.passed_on()))

            def passed_on(self) -> dict[str, str]:
                return {name: value for name, value in self.headers.items() if name.lower() in _PASSED_ON}

            def answer(self, response: httpx.Response) -> None:
                content = response.content
                if self.path == "/grade" and response.status_code == 200:
                    content = json.dumps(shuffled(response.json())).encode()
                self.send_response(response.status_code)
                for name in ("content-type", "retry-after"):
                    if name in response.headers:
                        self.send_header(name, response.headers[name])
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", port), Proxy) as proxy:
            yield proxy


def shuffled(answer: dict) -> dict:
    """The results in another order, each with the id of the result it replaces; held-out ones stay as they are."""
    if "eval" in answer["request_id"]:
        return answer
    results = list(answer["results"])
    random.Random(answer["request_id"]).shuffle(results)
    dealt = [{**new, "item_id": old["item_id"]} for new, old in zip(results, answer["results"], strict=True)]
    return {**answer, "results": dealt}


if __name__ == "__main__":
    main()
