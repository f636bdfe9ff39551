"""The survey of every causal language model of transformers, as tiny random models on the CPU.

    python tests/causal_models.py [TYPE ...]

Without arguments it writes the table in docs/models.md, in minutes; with model types it prints their results.
"""

import json
import logging
import re
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from causal_model_settings import AFTER_PADDING, FORMS, SETTINGS, SIZES, UNLIKE_CACHED, WINDOW
from transformers import CONFIG_MAPPING, AutoConfig, PreTrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from engine_server import EngineArgs, LLMEngine, SamplingParams
from engine_server.modeling.loader.sample import WINDOW_SETTING

PAGE = Path(__file__).parents[1] / "docs" / "models.md"
# A prompt whose output crosses windows, and one that crosses them several times.
LENGTHS = (6, 37)
NEW_TOKENS = 6
CONTEXT = 48
HEADING = "## Every class of transformers"
CALLS = re.compile(
    r"a copy of \w+ has (\d+) layers, of which (\d+) call the attention interface of transformers, (\d+) times"
)
LONGEST_REASON = 160
EQUAL = "equal"
WITHOUT_WINDOWS = "equal without windows"
REFUSED = "refused"
# What one model may take. A model that takes more ends its process.
CPU_SECONDS = 60
MEMORY_BYTES = 6 << 30


class Finding(NamedTuple):
    """How one model compares with transformers."""

    model_type: str
    form: str
    # EQUAL, WITHOUT_WINDOWS, REFUSED, or a fault.
    result: str
    # Why it's refused.
    reason: str = ""

    @property
    def case(self) -> "Case":
        return Case(self.model_type, self.form)


class Case(NamedTuple):
    """A tiny model to compare."""

    # The config's `model_type`.
    model_type: str
    # "": the usual one.
    form: str = ""

    @property
    def model(self) -> str:
        """The name of transformers' class."""
        model: Any = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[self.model_type]
        return model if isinstance(model, str) else model[0]


def list_cases() -> list[Case]:
    """Return a case for each model type that transformers has, and the forms of some."""
    return sorted([*map(Case, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES), *(Case(*names) for names in FORMS)])


def tiny_settings(kind: type[PreTrainedConfig], more: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a tiny model with one layer of each type, or two equal ones.

    more: settings that take precedence.
    """
    special = SETTINGS.get(kind.model_type, {}) | more
    names = {*kind.__dataclass_fields__, *kind.attribute_map}
    settings = {name: value for name, value in SIZES.items() if name in names} | special
    types = getattr(kind, kind.attribute_map.get("layer_types", "layer_types"), None)
    if "layer_types" in names and "layer_types" not in special and not isinstance(types, property):
        types = list(dict.fromkeys(getattr(kind(), "layer_types", None) or []))
        if types:
            types = types if len(types) > 1 else types * 2
            settings |= {"layer_types": types, "num_hidden_layers": len(types)}
    for name, part in getattr(kind, "sub_configs_defaults", {}).items():
        own = CONFIG_MAPPING[part.model_type] if part.config_class is AutoConfig else part.config_class
        settings[name] = {"model_type": own.model_type} | tiny_settings(own, special.get(name, {}))
    return {name: value for name, value in settings.items() if value is not None}


def tiny_config(case: Case, windows: bool) -> PreTrainedConfig:
    """Return the config of a tiny model, with short windows and chunks, or without windows."""
    kind = CONFIG_MAPPING[case.model_type]
    config = kind(**tiny_settings(kind, FORMS.get(case, {})))
    text = config.get_text_config(decoder=True)
    for part in {id(part): part for part in (config, text)}.values():
        for name, value in vars(part).items():
            if (value is None or type(value) is int) and WINDOW_SETTING.search(name):
                setattr(part, name, WINDOW if windows else 2 * CONTEXT)
    if not windows and "layer_types" in vars(text):
        text.layer_types = ["full_attention"] * len(text.layer_types)
    config.architectures = [case.model]
    return config


def survey(case: Case) -> Finding:
    """Compare a tiny model with transformers' `generate`, and if it's refused, again without windows."""
    reason = compare(tiny_config(case, windows=True))
    if reason is None:
        return Finding(*case, EQUAL)
    if "beyond its " in reason and compare(tiny_config(case, windows=False)) is None:
        return Finding(*case, WITHOUT_WINDOWS, reason)
    return Finding(*case, REFUSED, reason)


def compare(config: PreTrainedConfig) -> str | None:
    """Return why the engine refuses a model, or None. Raises AssertionError if it differs from `generate`."""
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        try:
            start(folder, "dummy")
        except ValueError as error:
            return str(error).replace(folder, "FOLDER")
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.from_pretrained(folder), dtype=torch.float32, attn_implementation="eager"
        ).eval()
        for name, weight in model.named_parameters():
            if "norm" in name:  # otherwise all 1, or 0
                weight.data.uniform_(0.5, 1.5)
        model.save_pretrained(folder)
        config.save_pretrained(folder)  # which the model has replaced by that of its text part
        prompts = [torch.randint(2, SIZES["vocab_size"], (1, length)) for length in LENGTHS]
        first = model.config.pad_token_id + 1 if config.model_type in AFTER_PADDING else 0
        by_forwards = first or config.model_type in UNLIKE_CACHED
        expected = [
            continue_by_forwards(model, prompt, first) if by_forwards else generate(model, prompt)
            for prompt in prompts
        ]
        found = run_engine(start(folder, "auto"), [prompt[0].tolist() for prompt in prompts])
    for (tokens, chances), (own_tokens, own_chances) in zip(expected, found, strict=True):
        assert own_tokens == tokens, f"tokens {own_tokens}, not {tokens}"
        worst = max(abs(a - b) for a, b in zip(chances, own_chances, strict=True))
        assert worst < 1e-3, f"log-probabilities differ by {worst}"
    return None


def generate(model: Any, prompt: torch.Tensor) -> tuple[list[int], list[float]]:
    """Return the tokens of transformers' `generate` and their log-probabilities."""
    output = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=NEW_TOKENS, do_sample=False,
        eos_token_id=None, pad_token_id=0, output_logits=True, return_dict_in_generate=True,
    )  # fmt: skip
    tokens = output.sequences[0, prompt.shape[1] :]
    chances = torch.cat(output.logits).float().log_softmax(-1)
    return tokens.tolist(), chances.gather(1, tokens[:, None])[:, 0].tolist()


@torch.inference_mode()
def continue_by_forwards(model: Any, prompt: torch.Tensor, first: int) -> tuple[list[int], list[float]]:
    """Return the likeliest tokens and their log-probabilities, by a forward without a cache for each.

    first: the first token's position.
    """
    tokens, chances = prompt, []
    for _ in range(NEW_TOKENS):
        positions = torch.arange(tokens.shape[1])[None] + first
        logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits[:, -1]
        chance, token = logits.log_softmax(-1).max(-1, keepdim=True)
        tokens = torch.cat([tokens, token], 1)
        chances.append(chance.item())
    return tokens[0, prompt.shape[1] :].tolist(), chances


def start(folder: str, load_format: str) -> LLMEngine:
    return LLMEngine.from_engine_args(
        EngineArgs(
            model=folder, load_format=load_format, runner="generate", dtype="float32", device="cpu",
            skip_tokenizer_init=True, max_model_len=CONTEXT, num_gpu_blocks_override=16, max_num_batched_tokens=16,
            generation_config="vllm", num_state_slots=8, disable_log_stats=True,
        )
    )  # fmt: skip


def run_engine(engine: LLMEngine, prompts: list[list[int]]) -> list[tuple[list[int], list[float]]]:
    """Return the engine's greedy tokens and their log-probabilities, with prompts batched and in chunks."""
    params = SamplingParams(
        temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False, logprobs=1
    )
    for number, prompt in enumerate(prompts):
        engine.add_request(str(number), {"prompt_token_ids": prompt}, params)
    last = {}
    while engine.has_unfinished_requests():
        last |= {output.request_id: output.outputs[0] for output in engine.step()}
    answers = []
    for number in range(len(prompts)):
        tokens, chances = last[str(number)].token_ids, last[str(number)].logprobs
        answers.append((tokens, [one[token].logprob for one, token in zip(chances, tokens, strict=True)]))
    return answers


def survey_in_processes(cases: Iterable[Case]) -> Iterator[Finding]:
    """Survey models in a process that is replaced where a model ends it."""
    left = list(cases)
    while left:
        command = [sys.executable, __file__, "--worker", json.dumps(left)]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            for line in process.stdout or ():
                finding = Finding(*json.loads(line))
                left.remove(finding.case)
                yield finding
        if left:
            yield Finding(*left.pop(0), f"ended its process: {process.returncode}")


def work(cases: Iterable[Case]) -> None:
    """Survey models in this process, and print each finding as a line of JSON."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    for case in cases:
        signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
        try:
            finding = survey(case)
        except Exception as error:
            finding = Finding(*case, f"{type(error).__name__}: {error}")
        print(json.dumps(finding), flush=True)


def table(findings: Iterable[Finding]) -> str:
    """Return the table of docs/models.md."""
    found = sorted(findings)
    counts = Counter(finding.result for finding in found)
    heading = f"With transformers {transformers.__version__}: " + ", ".join(
        f"{counts[result]} {result}" for result in (EQUAL, WITHOUT_WINDOWS, REFUSED)
    )
    lines = [
        f"{heading}.",
        "",
        "| model type | class in transformers | result | reason |",
        "| --- | --- | --- | --- |",
    ]
    for finding in found:
        reason = re.sub(r"\s+", " ", finding.reason).replace("|", "/").removeprefix(f"{finding.case.model} ")
        for ending in ("; it would be computed wrongly", ", which are not supported"):
            reason = reason.removesuffix(ending)
        reason = CALLS.sub(r"\2 of \1 layers call the attention interface, \3 times", reason)
        reason = reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}..."
        kind = finding.model_type + (f", {finding.form}" if finding.form else "")
        lines.append(f"| {kind} | `{finding.case.model}` | {finding.result} | {reason} |")
    return "\n".join(lines) + "\n"


def read_table() -> tuple[str, list[Finding]]:
    """Return the version of transformers with which the table of docs/models.md was made, and its findings."""
    text = PAGE.read_text()
    text = text[text.index(HEADING) :]
    rows = re.findall(r"^\| ([\w.-]+)(?:, ([^|]+))? \| `\w+` \| ([^|]+) \| ([^|]*) \|$", text, re.MULTILINE)
    (version,) = re.findall(r"^With transformers ([\w.]+):", text, re.MULTILINE)
    return version, [Finding(*row) for row in rows]


def write_table(findings: Iterable[Finding]) -> None:
    """Replace the table in docs/models.md."""
    before, heading, rest = PAGE.read_text().partition(HEADING)
    introduction, _, rest = rest.partition("With transformers ")
    PAGE.write_text(before + heading + introduction + table(findings) + rest[rest.index("|\n\n") + 2 :])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(Case(*names) for names in json.loads(sys.argv[2]))
    else:
        wanted = [case for case in list_cases() if not sys.argv[1:] or case.model_type in sys.argv[1:]]
        findings = []
        for finding in survey_in_processes(wanted):
            print(*finding, flush=True)
            findings.append(finding)
        if not sys.argv[1:]:
            write_table(findings)
