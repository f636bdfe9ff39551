"""The conditions of the API that types cannot express, in CEL and in Python."""

import re

from engine_server.contract import model_uri
from engine_server.contract.api import DEFAULT_NAMESPACE, MAX_NAME_LENGTH, Key
from engine_server.contract.served_names import is_foreign
from llm_operator.api.schema import Object, Rule

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
SOURCE_PATTERN = f"^({'|'.join(model_uri.SCHEMES)})://[^/].*"
CLAIM_PATTERN = f"^pvc://{model_uri.CLAIM_PATTERN}/[^/].*$"
# Flags of `fairlead engine` that the operator sets from other fields.
OWNED_FLAGS = (
    "--model",
    "--host",
    "--port",
    "--served-model-name",
    "--max-model-len",
    "--tensor-parallel-size",
    "--drain-timeout",
)


def is_owned(argument: str) -> bool:
    """Return True for an engine argument that sets an owned flag, spelled in full or abbreviated."""
    flag = argument.split("=")[0].replace("_", "-")
    return len(flag) > 3 and flag.startswith("--") and any(owned.startswith(flag) for owned in OWNED_FLAGS)


def is_path_of_claim(uri: str) -> bool:
    return re.search(CLAIM_PATTERN, uri) is not None and ".." not in uri


def has_valid_name(manifest: Object) -> bool:
    name = manifest["metadata"]["name"]
    return len(name) <= MAX_NAME_LENGTH and re.search(NAME_PATTERN, name) is not None


def has_own_served_names(manifest: Object) -> bool:
    metadata = manifest["metadata"]
    key = Key(metadata.get("namespace", DEFAULT_NAMESPACE), metadata["name"])
    return not any(is_foreign(name, key) for name in manifest["spec"]["model"].get("servedNames", ()))


KNOWN_SOURCE = Rule(
    cel=f"!self.contains('://') || self.matches('{SOURCE_PATTERN}')",
    message="a model is hf://ORG/NAME[@REVISION], pypi://PACKAGE, pvc://CLAIM/PATH, ORG/NAME or a path",
    holds=lambda uri: "://" not in uri or re.search(SOURCE_PATTERN, uri) is not None,
)
CLAIM_HAS_PATH = Rule(
    cel=f"!self.startsWith('pvc://') || self.matches('{CLAIM_PATTERN}') && !self.contains('..')",
    message="a model on a volume is pvc://CLAIM/PATH, with no .. in the path",
    holds=lambda uri: not uri.startswith("pvc://") or is_path_of_claim(uri),
)
NOT_OWNED = Rule(
    cel="!self.startsWith('--') || size(self.split('=')[0]) <= 3 || "
    f"![{', '.join(repr(flag) for flag in OWNED_FLAGS)}]"
    ".exists(flag, flag.startsWith(self.split('=')[0].replace('_', '-')))",
    message=f"the operator itself sets {', '.join(OWNED_FLAGS)}, from model, engine.maxModelLen, resources.gpu"
    " and rollout",
    holds=lambda argument: not is_owned(argument),
)
NOT_BLANK = Rule(
    cel="self.matches('^[^\\\\s]+$')",
    message="a served name has no white space in it",
    holds=lambda name: re.search(r"\s", name) is None,
)
MIN_AT_MOST_MAX = Rule(
    cel="!has(self.min) || self.min <= self.max",
    message="min is more than max",
    holds=lambda bounds: bounds.get("min", 0) <= bounds["max"],
)
ONE_VALUE = Rule(
    cel="!(has(self.value) && has(self.valueFrom))",
    message="a variable has a value or a valueFrom, not both",
    holds=lambda variable: not ("value" in variable and "valueFrom" in variable),
)
# CEL sees no namespace: the API server accepts ANYTHING/NAME, and the operator only NAMESPACE/NAME. A name that an
# earlier release accepted passes until servedNames change, since else the status could not be written.
OWN_SERVED_NAMES = Rule(
    cel="!has(self.spec.model.servedNames)"
    " || oldSelf.hasValue() && has(oldSelf.value().spec.model.servedNames)"
    " && oldSelf.value().spec.model.servedNames == self.spec.model.servedNames"
    " || self.spec.model.servedNames.all(name, !name.contains('/')"
    " || name.substring(name.indexOf('/') + 1) == self.metadata.name)",
    message="a served name has a slash in it only if it is the object's own NAMESPACE/NAME",
    holds=has_own_served_names,
    path="spec.model.servedNames",
    options={"fieldPath": ".spec.model.servedNames", "optionalOldSelf": True},
)
NAME_RULE = Rule(
    cel=f"self.metadata.name.matches('{NAME_PATTERN}') && size(self.metadata.name) <= {MAX_NAME_LENGTH}",
    message=f"a name of lower-case letters, digits and hyphens that begins with a letter,"
    f" at most {MAX_NAME_LENGTH} characters",
    holds=has_valid_name,
    path="metadata.name",
)
# The rules of the whole object.
OBJECT_RULES = (NAME_RULE, OWN_SERVED_NAMES)
