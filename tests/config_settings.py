"""The walk over config.json: each setting of each architecture of docs/models.md, changed alone, in a tiny model.

    python tests/config_settings.py [ARCHITECTURE ...]

Where a change changes the logits of transformers with the same weights, ours change equally, or the start is refused.
It writes tests/config_settings.csv, the rows of the named architectures or in a quarter of an hour all, and the numbers
in docs/models.md. Changes without effect on logits, and those that give parameters other shapes or names, have no row.
"""

import csv
import json
import logging
import re
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from architectures import ARCHITECTURES, SIZES, Architecture
from causal_models import LENGTHS, generate, run_engine, start
from torch import Tensor

TABLE = Path(__file__).parent / "config_settings.csv"
PAGE = Path(__file__).parents[1] / "docs" / "models.md"
SENTENCE = re.compile(r"Of \d+ changes that alter the logits .* are refused")
EQUAL, REFUSED = "equal", "refused"
# Of log-probabilities in float32.
TOLERANCE = 1e-3
# Of logits, beyond which a change has an effect that differs from rounding.
EFFECT = 10 * TOLERANCE
PROCESSES = 2
LONGEST_REASON = 160
# Names in place of a name, by the settings that have them.
NAMES: dict[str, tuple[str, ...]] = {
    "hidden_act": ("silu", "gelu", "gelu_pytorch_tanh"),
    "hidden_activation": ("silu", "gelu", "gelu_pytorch_tanh"),
    "activation": ("silu", "gelu", "gelu_pytorch_tanh"),
    "activation_function": ("gelu", "relu", "gelu_new"),
    "scoring_func": ("softmax", "sigmoid"),
    "topk_method": ("greedy", "group_limited_greedy", "noaux_tc"),
}
# Values in place of none.
VALUES = (8, 0.5, True, "silu")
# They name the model, or choose what else a forward returns.
SKIPPED = ("model_type", "architectures", "transformers_version", "dtype", "output_attentions")
# With eager attention falcon adds its ALiBi twice: to the scores, and within the mask.
ATTENTION = {"FalconForCausalLM": "sdpa"}
ROPES = "rope_parameters"
# Ropes in place of a rope; its base stays.
ROPE_CHANGES: tuple[dict[str, Any], ...] = (
    {"rope_type": "default"},
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16, "attention_factor": 0.5},
    {
        "rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
)  # fmt: skip


class Finding(NamedTuple):
    architecture: str
    # The name, with those of the objects that it is in, joined by dots.
    key: str
    # As JSON.
    value: str
    # EQUAL, REFUSED, or a fault.
    verdict: str
    # Why it's refused, or how it differs.
    reason: str = ""


def changes(settings: dict[str, Any]) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield each changed setting, its value, and the settings with it."""
    for name, value in settings.items():
        if name in SKIPPED:
            continue
        if isinstance(value, dict):
            for inner, new, changed in changes(value):
                yield f"{name}.{inner}", new, settings | {name: changed}
        if name == ROPES:
            for new in rope_changes(value):
                yield name, new, settings | {name: new}
        elif not isinstance(value, dict):
            for new in other_values(name, value):
                yield name, new, settings | {name: new}


def rope_changes(ropes: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield other ropes, of one kind of layer at a time where each has its own."""
    by_kind = {kind: rope for kind, rope in ropes.items() if isinstance(rope, dict)}
    for change in ROPE_CHANGES:
        for kind, rope in by_kind.items():
            yield ropes | {kind: {"rope_theta": rope["rope_theta"]} | change}
        if not by_kind and "rope_theta" in ropes:
            yield {"rope_theta": ropes["rope_theta"]} | change


def other_values(name: str, value: Any) -> list[Any]:
    """Return values of the same kind."""
    if name in NAMES:
        found: list[Any] = [*NAMES[name]]
    elif value is None:
        found = [*VALUES]
    elif isinstance(value, bool):
        found = [not value]
    elif isinstance(value, int):
        found = [value + 1, 2 * value, value // 2, 0, None]
    elif isinstance(value, float):
        found = [2 * value, value / 2, *([value + 0.25] if value < 1 else []), None]
    elif isinstance(value, list) and value:
        found = [value[::-1], value[:1] * len(value), value[-1:] * len(value)]
        if all(isinstance(one, int | float) for one in value):
            found.append([one * 2 for one in value])
    else:
        found = []
    return [one for number, one in enumerate(found) if one != value and one not in found[:number]]


def settings_of(architecture: Architecture) -> dict[str, Any]:
    """Return every setting of an architecture's config.json."""
    kind = getattr(transformers, architecture.model).config_class
    config = kind(**SIZES | architecture.settings, architectures=[architecture.model])
    settings: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
    return settings


class Walk:
    """One architecture's changes, compared with the model that it is without any."""

    def __init__(self, architecture: Architecture, folder: Path) -> None:
        self.name, self.folder = architecture.name, folder
        self.attention = ATTENTION.get(architecture.model, "eager")
        torch.manual_seed(0)
        self.settings = settings_of(architecture)
        model = self.model(self.settings)
        for weight in model.parameters():
            if weight.min() == weight.max():  # otherwise settings about norms and biases would show nothing
                torch.nn.init.uniform_(weight, *((0.5, 1.5) if weight.max() else (-0.5, 0.5)))
        self.state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.prompts = [torch.randint(2, SIZES["vocab_size"], (1, length)) for length in LENGTHS]
        self.logits = self.computed(model)

    def model(self, settings: dict[str, Any]) -> Any:
        """Return transformers' model of a config.json, with random weights."""
        (self.folder / "config.json").write_text(json.dumps(settings))
        config = transformers.AutoConfig.from_pretrained(self.folder)
        return transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation=self.attention
        ).eval()

    @torch.inference_mode()
    def computed(self, model: Any) -> list[Tensor]:
        return [model(prompt, use_cache=False).logits for prompt in self.prompts]

    def changed(self, settings: dict[str, Any]) -> Any | None:
        """Return transformers' model with other settings and the same weights; None where its logits are the same.

        None too where it has other parameters, or can't compute with them.
        """
        try:
            model = self.model(settings)
            missing, unexpected = model.load_state_dict(self.state, strict=False)
            if missing or unexpected:
                return None
            logits = self.computed(model)
        except Exception:  # anything, of settings that mean nothing
            return None
        if not all(one.isfinite().all() for one in logits):
            return None
        differs = any(
            (one - other).abs().max() > EFFECT for one, other in zip(logits, self.logits, strict=True)
        )
        return model if differs else None

    def compared(self, model: Any, settings: dict[str, Any]) -> tuple[str, str]:
        """Return how the engine compares with transformers' model, and why."""
        for name in ("model.safetensors", "generation_config.json"):
            (self.folder / name).unlink(missing_ok=True)
        model.save_pretrained(self.folder)
        (self.folder / "config.json").write_text(json.dumps(settings))
        try:
            engine = start(str(self.folder), "auto")
        except ValueError as error:
            return REFUSED, re.sub(r"\s+", " ", str(error).replace(str(self.folder), "FOLDER"))[
                :LONGEST_REASON
            ]
        found = run_engine(engine, [prompt[0].tolist() for prompt in self.prompts])
        for prompt, (tokens, chances) in zip(self.prompts, found, strict=True):
            expected, likelihoods = generate(model, prompt)
            for token, chance, own, likelihood in zip(tokens, chances, expected, likelihoods, strict=True):
                if not abs(chance - likelihood) < TOLERANCE:
                    return "differs", f"log-probabilities {chance:.4f} and {likelihood:.4f} of transformers"
                if token != own:  # two that are equally likely
                    break
        return EQUAL, ""

    def findings(self, keys: Collection[str] = ()) -> Iterator[Finding]:
        """Yield what the changes of some settings show, or of all."""
        assert self.compared(self.model_with_weights(), self.settings) == (EQUAL, ""), self.name
        for key, value, settings in changes(self.settings):
            model = self.changed(settings) if not keys or key in keys else None
            if model is not None:
                yield Finding(self.name, key, json.dumps(value), *self.compared(model, settings))

    def model_with_weights(self) -> Any:
        model = self.model(self.settings)
        model.load_state_dict(self.state)
        return model


def walk(name: str) -> list[Finding]:
    """Return the findings of an architecture."""
    (architecture,) = [one for one in ARCHITECTURES if one.name == name]
    with tempfile.TemporaryDirectory() as folder:
        return list(Walk(architecture, Path(folder)).findings())


def walk_in_process(name: str) -> list[Finding]:
    """Walk over an architecture in a process of its own, which frees what its many engines took."""
    command = [sys.executable, __file__, "--worker", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return [Finding(name, "", "", "ended its process", done.stderr[-400:])]
    return [Finding(*json.loads(line)) for line in done.stdout.splitlines() if line.startswith("[")]


def read_table() -> list[Finding]:
    with TABLE.open(newline="") as file:
        return [Finding(*row) for row in csv.reader(file)][1:]


def write_table(findings: list[Finding]) -> None:
    with TABLE.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Finding._fields)
        writer.writerows(findings)


def write_summary() -> None:
    """Replace the sentence in docs/models.md."""
    PAGE.write_text(SENTENCE.sub(summary(read_table()), PAGE.read_text()))


def summary(findings: list[Finding]) -> str:
    """Return the sentence of docs/models.md."""
    equal = sum(one.verdict == EQUAL for one in findings)
    return (
        f"Of {len(findings)} changes that alter the logits of transformers, {equal} alter ours equally, and "
        f"{len(findings) - equal} are refused"
    )


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    if sys.argv[1:2] == ["--worker"]:
        logging.disable(logging.CRITICAL)
        for finding in walk(sys.argv[2]):
            print(json.dumps(finding), flush=True)
    else:
        every = [one.name for one in ARCHITECTURES]
        wanted = sys.argv[1:] or every
        rows = {name: [one for one in read_table() if one.architecture == name] for name in every}
        with ThreadPoolExecutor(PROCESSES) as pool:
            for name, found in zip(wanted, pool.map(walk_in_process, wanted), strict=True):
                for finding in found:
                    print(*finding, sep="\t", flush=True)
                rows[name] = found
        write_table([finding for found in rows.values() for finding in found])
        write_summary()
