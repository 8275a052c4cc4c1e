"""The model server: vLLM from an environment of its own, on loopback, with its development endpoints open.

Those endpoints load weights and pause the engine; nobody but this machine may reach them.
"""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import hindstream
from hindstream.errors import UserError
from hindstream.settings import child_environment
from hindstream.stack import model, processes
from hindstream.stack.ports import LOOPBACK
from hindstream.stack.processes import ProcessId
from hindstream.stack.service import Managed

# The name under which the server knows its model: the default of HINDSTREAM_POLICY__MODEL.
SERVED_NAME = "policy"
PROBE_TIMEOUT_S = 2.0
# The first request compiles what it needs: 15 s alone, more beside busy neighbours.
WARM_UP_TIMEOUT_S = 300.0


class Vllm(Managed):
    name = "vllm"
    program = "python"
    port_setting = ("vllm", "port")
    stop_signal = signal.SIGTERM
    stop_grace_s = 20.0

    @property
    def start_timeout_s(self) -> float:  # type: ignore[override]
        return self.context.settings.vllm.start_timeout_s

    def fixed_port(self) -> int:
        return self.context.settings.vllm.port

    def detail(self) -> dict[str, str]:
        settings = self.context.settings
        return {"dtype": settings.vllm.dtype, "model": str(settings.model or model.NAME)}

    def prepare(self) -> None:
        settings = self.context.settings
        self._python = python_of(settings.vllm.python)
        self._model = model.ensure(settings.model, settings.cache, self.say)

    def launch(self, port: int) -> ProcessId:
        settings = self.context.settings.vllm
        command = [str(self._python), "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self._model), "--served-model-name", SERVED_NAME]
        command += ["--host", LOOPBACK, "--port", str(port)]
        command += ["--dtype", settings.dtype, "--max-model-len", str(settings.max_model_len)]
        # Tokens in, tokens out, and the weight version of every span of them.
        command += ["--enable-scale-out", *(["--enforce-eager"] if settings.enforce_eager else [])]
        if settings.max_lora_rank:
            command += ["--enable-lora", "--max-lora-rank", str(settings.max_lora_rank)]
        command += settings.extra_args
        self.say(f"starting with {settings.dtype} from {self._model.name}; about a minute on two cores")
        return processes.spawn(command, log=self.log, cwd=self.directory, env=self._environment())

    def is_ready(self, port: int) -> bool:
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{port}/health", timeout=PROBE_TIMEOUT_S) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def finish(self, port: int) -> None:
        """One request of each kind that we send, so that no caller pays for compiling."""
        self.say("warming up")
        message = {"model": SERVED_NAME, "messages": [{"role": "user", "content": "Say hello."}]}
        for path, body in (
            ("/v1/chat/completions", {**message, "max_tokens": 4, "logprobs": True, "top_logprobs": 1}),
            ("/v1/chat/completions", {**message, "max_tokens": 4, "structured_outputs": {"choice": ["yes", "no"]}}),
            ("/inference/v1/generate", _generate([1, 2, 3, 4], prompt_logprobs=4)),
        ):
            try:
                post(f"http://{LOOPBACK}:{port}{path}", body, WARM_UP_TIMEOUT_S)
            except OSError as error:
                raise UserError(
                    f"vllm does not answer its first request to {path} ({error}); look at {self.log}"
                ) from None

    def _environment(self) -> dict[str, str]:
        settings = self.context.settings.vllm
        cores = len(os.sched_getaffinity(0))
        environment = child_environment(
            VLLM_SERVER_DEV_MODE="1",
            VLLM_ALLOW_RUNTIME_LORA_UPDATING="1",
            VLLM_NO_USAGE_STATS="1",
            VLLM_CPU_KVCACHE_SPACE=str(settings.kv_cache_gb),
            # Its default binds threads to cores and leaves one core out: on a machine of two that is half of
            # it.
            VLLM_CPU_OMP_THREADS_BIND="nobind",
            OMP_NUM_THREADS=str(settings.threads or cores),
            # A thread that spins while it waits makes every neighbour, and itself, ten times slower.
            OMP_WAIT_POLICY="PASSIVE",
            HF_HUB_OFFLINE="1",
            TRANSFORMERS_OFFLINE="1",
        )
        for ours in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"):
            environment.pop(ours, None)
        return environment


def python_of(configured: Path | None) -> Path:
    """The Python that has vLLM.

    Raises:
        UserError: it is not there.
    """
    python = configured.expanduser() if configured else checkout() / ".venv-vllm/bin/python"
    if not python.exists():
        raise UserError(
            f"the model server's environment is missing ({python}): run `make env`, or set HINDSTREAM_VLLM__PYTHON "
            "to a Python that has vLLM, or HINDSTREAM_POLICY__URL to a server that runs already"
        )
    return python


def checkout() -> Path:
    """The directory that the code lies in."""
    return Path(hindstream.__file__).resolve().parent.parent


def post(address: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """POST JSON and read JSON. Raises OSError (urllib's errors are such) if there is no good answer."""
    request = urllib.request.Request(
        address, data=json.dumps(body).encode(), headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout_s) as answer:
        decoded: dict[str, Any] = json.load(answer)
        return decoded


def _generate(token_ids: list[int], **sampling: int) -> dict[str, Any]:
    return {"model": SERVED_NAME, "token_ids": token_ids, "sampling_params": {"max_tokens": 1, **sampling}}
