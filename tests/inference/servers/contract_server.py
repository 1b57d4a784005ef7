"""A server that answers as vLLM or SGLang does, over real HTTP.

Its model is small enough to work out by hand, or one of transformers. Its answers are those in recorded/, which come
from the real servers (record_answers.py), with the numbers replaced. `faults` make it behave as broken servers do.
"""

import copy
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from inference.servers.table_model import TableModel

RECORDED = Path(__file__).with_name("recorded")


def recorded(kind: str) -> dict[str, Any]:
    """The answers of a real server, by endpoint."""
    (file,) = RECORDED.glob(f"{kind.removesuffix('-server')}-*.json")
    return json.loads(file.read_text(encoding="utf-8"))


class Refusal(Exception):
    """An HTTP status other than 200, with its body."""

    def __init__(self, status: int, body: Any, **headers: str) -> None:
        super().__init__(status)
        self.status, self.body, self.headers = status, body, headers


class ContractServer:
    """The state of one server: its weights, their label, and what is wrong with it."""

    def __init__(
        self, kind: str, model: Path, key: str | None = None, port: int = 0, read: Callable[[Path], Any] = TableModel
    ) -> None:
        """`read` makes of a folder the model that samples and scores, `TableModel` or `CausalModel`."""
        self.kind, self.key, self._read = kind, key, read
        self.answers = copy.deepcopy(recorded(kind))
        self.faults: dict[str, Any] = {}
        self.asked: list[tuple[str, Any]] = []
        self.table = self.cached = read(model)
        self.label = "default"
        self.adapters: dict[str, tuple[str, Any]] = {}
        self.paused = self.broken = False
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._http = self._listening(port)
        self.port = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def kill(self) -> None:
        """Stop listening and break off every answer, as a killed process does."""
        self._http.shutdown()
        self._http.server_close()
        for each in list(self._open):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def answer(self, method: str, path: str, body: Any, key: str | None) -> Any:
        """The JSON of an answer; raises Refusal."""
        is_completion = path in ("/generate", "/v1/completions")
        if is_completion:
            time.sleep(self.faults.get("slow", 0))
        protected = self.kind == "sglang-server" or path.startswith("/v1")
        if self.key is not None and key != f"Bearer {self.key}" and protected and not path.startswith("/health"):
            raise Refusal(401, {"error": "Unauthorized"})
        with self._lock:
            self.asked.append((path, body))
            if is_completion:
                self._before_a_completion()
            name = "".join(char if char.isalnum() else "_" for char in path.strip("/"))
            return getattr(self, f"_{method.lower()}_{name}")(body)

    def _before_a_completion(self) -> None:
        if self.broken:  # as vLLM after a failed reload
            threading.Thread(target=self.kill).start()
            raise Refusal(500, {"error": {"message": "EngineCore encountered an issue."}})
        if self.faults.get("busy", 0) > 0:
            self.faults["busy"] -= 1
            raise Refusal(503, {"error": "overloaded"}, **{"Retry-After": "0.01"})
        if self.faults.get("dies_after", 1) <= 0:
            threading.Thread(target=self.kill).start()
            time.sleep(5)
        if "dies_after" in self.faults:
            self.faults["dies_after"] -= 1

    def _load(self, folder: str, label: str) -> None:
        if self.faults.get("refuses_weights"):
            self.broken = True
            raise Refusal(500, {"error": {"message": "Worker failed with error 'bad shape'"}})
        if not self.faults.get("keeps_weights"):
            before, self.table = self.table, self._read(Path(folder))
            self.cached = before if self.faults.get("keeps_cache") else self.table
        if not self.faults.get("keeps_label"):
            self.label = label

    def _sampled(
        self, table: Any, prompt: list[int], seed: int, temperature: float, most: int, ends: list[int]
    ) -> tuple[list[int], list[float]]:
        if self.faults.get("clones_seeds"):
            seed = 0
        if self.faults.get("ignores_seeds"):
            seed = time.monotonic_ns()
        ids, logprobs = table.sample(prompt, seed, temperature, most, ends)
        if self.faults.get("raw_logprobs"):
            logprobs = table.score([*prompt, *ids])[-len(ids) :]
        if self.faults.get("breaks_off") and len(ids) > 1:
            return ids[:-1], logprobs[:-1]
        return ids, logprobs

    # vLLM

    def _get_version(self, _: Any) -> Any:
        return self.answers["version"]

    def _get_openapi_json(self, _: Any) -> Any:
        return {"paths": {path: {} for path in self.answers["openapi"]}}

    def _get_health(self, _: Any) -> Any:
        return None

    def _get_is_paused(self, _: Any) -> Any:
        return {"is_paused": self.paused}

    def _get_server_info(self, _: Any) -> Any:
        return self.answers["server_info"]

    def _get_weight_info(self, _: Any) -> Any:
        return {"weight_version": self.label}

    def _get_v1_models(self, _: Any) -> Any:
        answer = copy.deepcopy(self.answers["models"])
        (base,) = (model for model in answer["data"] if model["parent"] is None)
        listed = [{**base, "id": name, "root": root, "parent": base["id"]} for name, (root, _) in self.adapters.items()]
        return {**answer, "data": [base, *listed]}

    def _post_v1_load_lora_adapter(self, body: Any) -> Any:
        if body["lora_name"] in self.adapters:
            raise Refusal(400, self.answers["adapter_loaded_twice"])
        self.adapters[body["lora_name"]] = (body["lora_path"], self._read(Path(body["lora_path"])))

    def _post_v1_unload_lora_adapter(self, body: Any) -> Any:
        del self.adapters[body["lora_name"]]

    def _post_pause(self, _: Any) -> Any:
        self.paused = True
        return self.answers["pause"]

    def _post_resume(self, _: Any) -> Any:
        self.paused = False
        return self.answers["resume"]

    def _post_collective_rpc(self, body: Any) -> Any:
        if body["method"] == "reload_weights":
            self._load(body["kwargs"]["weights_path"], self.label)
        return self.answers["collective_rpc"]

    def _post_reset_prefix_cache(self, _: Any) -> Any:
        if not self.faults.get("keeps_cache"):
            self.cached = self.table
        return self.answers["reset_prefix_cache"]

    def _post_update_weight_version(self, body: Any) -> Any:
        if not self.faults.get("keeps_label"):
            self.label = body["new_version"]
        return {"success": True, "new_version": body["new_version"]}

    def _post_v1_completions(self, body: Any) -> Any:
        (prompt,), name = body["prompt"], body["model"]
        base = self.answers["models"]["data"][0]["id"]
        if name != base and name not in self.adapters:
            raise Refusal(404, self.answers["unknown_model"])
        table = self.table if name == base else self.adapters[name][1]
        if "prompt_logprobs" in body:
            answer = copy.deepcopy(self.answers["score"])
            scores = zip(prompt[1:], table.score(prompt), strict=True)
            entries = [{str(token): {"logprob": value, "rank": 1}} for token, value in scores]
            answer["choices"][0] |= {"prompt_logprobs": [None, *entries], "prompt_token_ids": prompt}
            return {**answer, "model": name}
        ids, logprobs = self._sampled(
            self.cached if name == base else table,
            prompt,
            body["seed"],
            body["temperature"],
            body["max_tokens"],
            body["stop_token_ids"],
        )
        answer = copy.deepcopy(self.answers["completion"])
        choice = answer["choices"][0]
        choice |= {"token_ids": ids, "prompt_token_ids": prompt}
        if ids[-1] in body["stop_token_ids"]:
            choice |= {"finish_reason": "stop", "stop_reason": ids[-1]}
        choice["logprobs"]["token_logprobs"] = logprobs
        if self.faults.get("drops_logprobs"):
            choice["logprobs"] = None
        return {**answer, "model": name}

    # SGLang

    def _get_model_info(self, _: Any) -> Any:
        return {**self.answers["model_info"], "weight_version": self.label}

    def _post_update_weights_from_disk(self, body: Any) -> Any:
        self._load(body["model_path"], body["weight_version"])
        return self.answers["update_weights_from_disk"]

    def _post_generate(self, body: Any) -> Any:
        prompt, parameters = body["input_ids"], body["sampling_params"]
        is_score = "logprob_start_len" in body
        answer = copy.deepcopy(self.answers["score" if is_score else "completion"])
        meta = answer["meta_info"]
        meta |= {"prompt_tokens": len(prompt), "weight_version": self.label}
        if is_score:
            values = [None, *self.table.score(prompt)]
            meta["input_token_logprobs"] = [[value, token, None] for value, token in zip(values, prompt, strict=True)]
            meta["weight_versions"] = [{"version": self.label, "start": 0, "end": 1}]
            return answer
        ids, logprobs = self._sampled(
            self.cached,
            prompt,
            parameters["sampling_seed"],
            parameters["temperature"],
            parameters["max_new_tokens"],
            parameters["stop_token_ids"],
        )
        if ids[-1] in parameters["stop_token_ids"]:
            meta["finish_reason"] = {"type": "stop", "matched": ids[-1]}
        else:
            meta["finish_reason"] = {"type": "length", "length": len(ids)}
        meta["output_token_logprobs"] = [[value, token, None] for value, token in zip(logprobs, ids, strict=True)]
        if self.faults.get("drops_logprobs"):
            del meta["output_token_logprobs"]
        meta["weight_versions"] = [{"version": self.label, "start": 0, "end": len(ids)}]
        return {**answer, "output_ids": ids}

    def _listening(self, port: int) -> ThreadingHTTPServer:
        contract = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def setup(self) -> None:
                contract._open.add(self.request)
                super().setup()

            def finish(self) -> None:
                contract._open.discard(self.request)
                with suppress(OSError):
                    super().finish()

            def handle(self) -> None:
                with suppress(OSError, json.JSONDecodeError):  # the client is gone
                    super().handle()

            def do_GET(self) -> None:
                self._reply(None)

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                self._reply(json.loads(self.rfile.read(length)) if length else None)

            def _reply(self, body: Any) -> None:
                path, status, headers = urlsplit(self.path).path, 200, {}
                try:
                    answer = contract.answer(self.command, path, body, self.headers.get("Authorization"))
                except Refusal as refusal:
                    status, answer, headers = refusal.status, refusal.body, refusal.headers
                content = b"" if answer is None else json.dumps(answer).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            request_queue_size = 256
            daemon_threads = True

        return Server(("127.0.0.1", port), Handler)


@contextmanager
def contract_server(kind: str, model: Path, **options: Any) -> Iterator[ContractServer]:
    """Run such a server while the block lasts."""
    server = ContractServer(kind, model, **options)
    try:
        yield server
    finally:
        with suppress(OSError):
            server.kill()
