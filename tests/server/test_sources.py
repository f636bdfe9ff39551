"""Settings from flags, a config file and environment variables."""

import re
from pathlib import Path

import pytest

from engine_server.engine.engine_args import AsyncEngineArgs
from engine_server.server.arguments import ServerArgs
from engine_server.server.sources import Settings


def read(*argv: str, environment: dict[str, str] | None = None) -> tuple[AsyncEngineArgs, ServerArgs]:
    settings = Settings("fairlead engine", "", AsyncEngineArgs, ServerArgs)
    values = settings.read(list(argv), environment or {})
    return AsyncEngineArgs.from_cli_args(values), ServerArgs.of(values)


def config(folder: Path, text: str) -> str:
    file = folder / "config.yaml"
    file.write_text(text)
    return f"--config={file}"


def test_flag_overrides_file_which_overrides_environment_and_default(tmp_path: Path) -> None:
    file = config(tmp_path, "max-num-seqs: 3\nmax_model_len: 30\nport: 9000\n")
    environment = {
        "FAIRLEAD_MAX_NUM_SEQS": "2",
        "FAIRLEAD_MAX_MODEL_LEN": "20",
        "FAIRLEAD_BLOCK_SIZE": "32",
    }
    engine, server = read("a-model", file, "--max-num-seqs=4", environment=environment)
    assert (engine.max_num_seqs, engine.max_model_len, engine.block_size) == (4, 30, 32)
    assert (server.port, server.host) == (9000, "::")
    assert engine.model == "a-model"


def test_every_kind_of_value_is_read_from_a_file(tmp_path: Path) -> None:
    text = """
model: org/name
served-model-name: [one, two]
enable-prefix-caching: false
enforce-eager: true
gpu-memory-utilization: 0.5
kv-cache-memory-bytes: 1GiB
hf-overrides: {rope_theta: 1000}
allowed-origins: ["https://a.example"]
disable-access-log-for-endpoints: [/version, /v1/models]
ssl-cert-reqs: 1
revision: null
"""
    engine, server = read(config(tmp_path, text))
    assert engine.model == "org/name"
    assert engine.served_model_name == ["one", "two"]
    assert (engine.enable_prefix_caching, engine.enforce_eager) == (False, True)
    assert (engine.gpu_memory_utilization, engine.kv_cache_memory_bytes) == (0.5, 1 << 30)
    assert engine.hf_overrides == {"rope_theta": 1000}
    assert engine.revision is None
    assert server.allowed_origins == ["https://a.example"]
    assert server.disable_access_log_for_endpoints == ["/version", "/v1/models"]
    assert server.ssl_cert_reqs == 1


def test_every_kind_of_value_is_read_from_the_environment() -> None:
    environment = {
        "FAIRLEAD_MODEL": "org/name",
        "FAIRLEAD_SERVED_MODEL_NAME": "one,two",
        "FAIRLEAD_ENFORCE_EAGER": "yes",
        "FAIRLEAD_ENABLE_PREFIX_CACHING": "0",
        "FAIRLEAD_HF_OVERRIDES": '{"rope_theta": 1000}',
        "FAIRLEAD_ALLOWED_ORIGINS": '["https://a.example", "https://b.example"]',
        "FAIRLEAD_DISABLE_ACCESS_LOG_FOR_ENDPOINTS": "/version,/v1/models",
        "FAIRLEAD_DTYPE": "",
    }
    engine, server = read(environment=environment)
    assert engine.model == "org/name"
    assert engine.served_model_name == ["one", "two"]
    assert (engine.enforce_eager, engine.enable_prefix_caching) == (True, False)
    assert engine.hf_overrides == {"rope_theta": 1000}
    assert engine.dtype == "auto"
    assert server.allowed_origins == ["https://a.example", "https://b.example"]
    assert server.disable_access_log_for_endpoints == ["/version", "/v1/models"]


def test_lists_of_a_flag_replace_those_of_other_sources(tmp_path: Path) -> None:
    file = config(tmp_path, "served-model-name: [of-file]")
    engine, _ = read("model", file, "--served-model-name", "a", "b", "--served-model-name=c")
    assert engine.served_model_name == ["a", "b", "c"]


def test_no_flag_takes_the_model_that_follows_it() -> None:
    engine, _ = read("--served_model_name", "a", "--api-key", "k", "--served-model-name=b", "org/name")

    assert (engine.model, engine.served_model_name) == ("org/name", ["a", "b"])


def test_words_of_a_list_are_its_own_where_the_model_comes_from_elsewhere(tmp_path: Path) -> None:
    engine, _ = read("--served-model-name", "a", "b", config(tmp_path, "model: org/name"))

    assert (engine.model, engine.served_model_name) == ("org/name", ["a", "b"])


@pytest.mark.parametrize(
    ("environment", "keys"),
    [
        ({"VLLM_API_KEY": "a,b"}, ["a,b"]),
        ({"VLLM_API_KEY": "a", "FAIRLEAD_API_KEY": "b,c"}, ["b", "c"]),
        ({"VLLM_API_KEY": ""}, None),
    ],
)
def test_api_keys_are_read_from_the_environment(environment: dict[str, str], keys: list[str] | None) -> None:
    _, server = read("model", environment=environment)
    assert server.api_key == keys
    _, server = read("model", "--api-key=given", "--api-key", "second", environment=environment)
    assert server.api_key == ["given", "second"]
    assert "given" not in repr(server)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max-modellen: 3", "max-modellen.*similar: max-model-len"),
        ("max-num-seqs: many", "argument --max-num-seqs: .*'many'"),
        ("dtype: int3", "argument --dtype: .*'int3'.*bfloat16"),
        ("enforce-eager: perhaps", "argument --enforce-eager: 'perhaps' is neither true nor false"),
        ("port: true", "argument --port: it takes no true or false"),
        ("allowed-methods: '[1]'", "argument --allowed-methods: .* is no list of strings"),
        ("root-path: [a", "is not YAML"),
        ("- 1", "takes lines such as"),
    ],
)
def test_wrong_entry_of_a_file_is_named_with_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        read("model", config(tmp_path, text))
    message = capsys.readouterr().err
    assert "config.yaml" in message
    assert re.search(said, message)


def test_wrong_value_of_a_variable_is_named_with_the_variable(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    environment = {"FAIRLEAD_PORT": "tcp://10.0.0.1:80", "FAIRLEAD_PROT": "80", "FAIRLEAD_CACHE": "/tmp"}
    with pytest.raises(SystemExit, match="2"):
        read("model", environment=environment)
    assert "environment variable FAIRLEAD_PORT: argument --port" in capsys.readouterr().err
    read("model", environment={"FAIRLEAD_PROT": "80", "FAIRLEAD_CACHE": "/tmp"})
    assert "FAIRLEAD_PROT" in caplog.text
    assert "FAIRLEAD_CACHE" not in caplog.text


def test_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        read("model", f"--config={tmp_path}/none.yaml")
    assert "none.yaml can't be read: No such file" in capsys.readouterr().err


def test_help_is_grouped_and_has_every_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        read("--help")
    text = capsys.readouterr().out
    for title in ("Address:", "API keys:", "TLS", "CORS:", "Scheduling:", "Context and KV cache:"):
        assert f"\n{title}" in text
    assert "SUPPRESS" not in text


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--root-path=api"], "--root-path is 'api'; it takes a path that begins with /"),
        (["--ssl-keyfile=key.pem"], "need --ssl-certfile"),
        (["--ssl-certfile=cert.pem", "--ssl-cert-reqs=2"], "--ssl-cert-reqs needs --ssl-ca-certs"),
    ],
)
def test_flags_that_need_each_other_are_checked(flags: list[str], said: str) -> None:
    _, server = read("model", *flags)
    with pytest.raises(ValueError, match=said):
        server.check()


def test_keys_of_an_object_may_be_flags_of_their_own() -> None:
    engine, _ = read(
        "m", "--speculative-config.method", "ngram", "--speculative-config.num-speculative-tokens=3"
    )
    assert engine.speculative_config == {"method": "ngram", "num_speculative_tokens": 3}
    engine, _ = read("m", "--hf-overrides.rope_scaling.factor=2.5")
    assert engine.hf_overrides == {"rope_scaling": {"factor": 2.5}}
