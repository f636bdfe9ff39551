"""The conditions of the API that types cannot express, in CEL and in Python."""

import re

from engine_server.contract.cluster import model_uri
from engine_server.contract.cluster.api import MAX_NAME_LENGTH
from engine_server.contract.cluster.model_uri import FETCHED, FETCHED_PATTERN
from engine_server.contract.cluster.served_names import has_one_slash, is_printable
from engine_server.contract.cluster.sources.hub import FILE_PATTERN, HubRepository
from llm_operator.api.schema import Object, Rule

NAME_PATTERN = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
VOLUME_CLAIM = "pvc://"
# Flags of `fairlead engine` that the operator sets from other fields. More are refused where a pod is rendered.
OWNED_FLAGS = (
    "--model",
    "--host",
    "--port",
    "--served-model-name",
    "--max-model-len",
    "--tensor-parallel-size",
    "--drain-timeout",
    "--adapters-file",
)
# An absolute path of printable ASCII characters without colons, which mounts do not allow.
FILE_PATH_PATTERN = "^(/[!-.0-9;-~]+)+$"
# Folders of the kernel, and those in which the operator mounts volumes.
OWN_FOLDERS = ("/proc", "/sys", "/dev", "/models", "/cache", "/tmp", "/etc/fairlead")  # noqa: S108
# A ConfigMap holds 1 MiB, and a character takes up to 4 bytes.
MOST_FILE_CHARACTERS = 256 * 1024


def is_owned(argument: str) -> bool:
    """Return True for an engine argument that sets one of OWNED_FLAGS. Engines take no abbreviations."""
    return argument.split("=")[0].replace("_", "-") in OWNED_FLAGS


def is_free_path(path: str) -> bool:
    folders = path.split("/")
    is_taken = any(
        f"{path}/".startswith(f"{folder}/") or folder.startswith(f"{path}/") for folder in OWN_FOLDERS
    )
    return (
        re.fullmatch(FILE_PATH_PATTERN, path) is not None and not {".", ".."} & set(folders) and not is_taken
    )


def are_nested(files: list[Object]) -> bool:
    """Return True if the path of a file lies below that of another."""
    paths = [file["path"] for file in files]
    return any(path.startswith(f"{parent}/") for parent in paths for path in paths)


def has_valid_name(manifest: Object) -> bool:
    name = manifest["metadata"]["name"]
    return len(name) <= MAX_NAME_LENGTH and re.search(NAME_PATTERN, name) is not None


def has_served_names_of_organizations(manifest: Object) -> bool:
    names = manifest["spec"]["model"].get("servedNames", ())
    return all(has_one_slash(name) for name in names if "/" in name)


def has_step(rollout: Object) -> bool:
    """Return True if a rollout may start or end at least one replica."""
    strategy = rollout.get("strategy", "surge")
    surge = rollout.get("maxSurge", int(strategy == "surge"))
    unavailable = rollout.get("maxUnavailable", int(strategy == "inPlace"))
    return not {surge, unavailable} <= {0, "0%"}


def is_adapter_uri(uri: str) -> bool:
    if not model_uri.is_valid(uri):
        return False
    source = model_uri.parse(uri)
    return not (isinstance(source, HubRepository) and source.file is not None)


def claim_in(uri: str) -> str:
    """Return the claim of a URI that begins with pvc://."""
    return uri.removeprefix(VOLUME_CLAIM).split("/")[0]


def has_adapters_on_its_claim(manifest: Object) -> bool:
    """Return True if adapters on a claim are on the one that holds the model."""
    model, adapters = manifest["spec"]["model"], manifest["spec"].get("adapters", ())
    is_on_claim = model["uri"].startswith(VOLUME_CLAIM)
    held = claim_in(model["uri"]) if is_on_claim else model.get("cache", {}).get("claim", "")
    uris = [adapter["uri"] for adapter in adapters]
    return all(claim_in(uri) == held for uri in uris if uri.startswith(VOLUME_CLAIM))


def has_free_adapter_names(manifest: Object) -> bool:
    spec = manifest["spec"]
    taken = {manifest["metadata"]["name"], *spec["model"].get("servedNames", ())}
    return not any(adapter["name"] in taken for adapter in spec.get("adapters", ()))


MODEL_URI = Rule(
    cel=f'self.matches(r"^(?:{model_uri.PATTERN})$")',
    message=f"a model is {model_uri.MODEL_FORMS}",
    holds=model_uri.is_valid,
)
CACHED_SOURCE = Rule(
    cel=f"!has(self.cache) || self.uri.matches('{FETCHED_PATTERN}')",
    message=f"cache is for a model that is fetched: from {', '.join(f'{source.SCHEME}://' for source in FETCHED)}",
    holds=lambda model: "cache" not in model or re.search(FETCHED_PATTERN, str(model["uri"])) is not None,
)
CLAIM_OR_SIZE = Rule(
    cel="has(self.claim) != has(self.size)",
    message="a cache has either a claim, which exists, or the size of one to create",
    holds=lambda cache: ("claim" in cache) != ("size" in cache),
)
SIZE_WITH_OPTIONS = Rule(
    cel="has(self.size) || !has(self.class) && !has(self.accessMode)",
    message="class and accessMode are for a claim that is created: they need a size",
    holds=lambda cache: "size" in cache or not ("class" in cache or "accessMode" in cache),
)
NOT_OWNED = Rule(
    cel=f"!(self.split('=')[0].replace('_', '-') in [{', '.join(map(repr, OWNED_FLAGS))}])",
    message=f"the operator itself sets {', '.join(OWNED_FLAGS)}, from model, engine.maxModelLen, resources.gpu,"
    " rollout and adapters",
    holds=lambda argument: not is_owned(argument),
)
PRINTABLE = Rule(
    cel=r"self.matches('^[^\\s\\p{Z}\\p{C}]+$')",
    message="a served name has no white space and no control characters in it",
    holds=is_printable,
)
ADAPTER_NAME = Rule(
    cel=r"self.matches('^[^\\s\\p{Z}\\p{C}/]+$')",
    message="the name of an adapter has no white space, no control characters and no slash in it",
    holds=lambda name: "/" not in name and is_printable(name),
)
ADAPTER_URI = Rule(
    cel=f'self.matches(r"^(?:{model_uri.PATTERN})$") && !self.matches("{FILE_PATTERN}")',
    message=f"an adapter is {model_uri.ADAPTER_FORMS}",
    holds=is_adapter_uri,
)
MIN_AT_MOST_MAX = Rule(
    cel="!has(self.min) || self.min <= self.max",
    message="min is more than max",
    holds=lambda bounds: bounds.get("min", 0) <= bounds["max"],
)
PANIC_WITHIN_STABLE = Rule(
    cel="(has(self.panicWindowSeconds) ? self.panicWindowSeconds : 6)"
    " <= (has(self.stableWindowSeconds) ? self.stableWindowSeconds : 60)",
    message="panicWindowSeconds (6 by default) is more than stableWindowSeconds (60 by default)",
    holds=lambda given: given.get("panicWindowSeconds", 6) <= given.get("stableWindowSeconds", 60),
)
ONE_VALUE = Rule(
    cel="!(has(self.value) && has(self.valueFrom))",
    message="a variable has a value or a valueFrom, not both",
    holds=lambda variable: not ("value" in variable and "valueFrom" in variable),
)
HAS_STEP = Rule(
    cel="(has(self.maxSurge) ? !(string(self.maxSurge) in ['0', '0%']) : self.?strategy.orValue('surge') == 'surge')"
    " || (has(self.maxUnavailable) ? !(string(self.maxUnavailable) in ['0', '0%'])"
    " : self.?strategy.orValue('surge') == 'inPlace')",
    message="maxSurge and maxUnavailable are both 0: no replica could ever be replaced",
    holds=has_step,
)
ONE_OBJECT = Rule(
    cel="has(self.configMapRef) != has(self.secretRef)",
    message="variables come from a configMapRef or a secretRef",
    holds=lambda source: ("configMapRef" in source) != ("secretRef" in source),
)
ONE_CONTENT = Rule(
    cel="[has(self.content), has(self.configMap), has(self.secret)].filter(given, given).size() == 1",
    message="a file has one of content, configMap and secret",
    holds=lambda file: len({"content", "configMap", "secret"} & file.keys()) == 1,
)
FREE_PATH = Rule(
    cel=f"self.matches('{FILE_PATH_PATTERN}') && !self.split('/').exists(part, part == '.' || part == '..')"
    f" && ![{', '.join(repr(folder) for folder in OWN_FOLDERS)}]"
    ".exists(folder, (self + '/').startsWith(folder + '/') || folder.startsWith(self + '/'))",
    message="a file has an absolute path of printable ASCII characters, without . and .. and colons, outside of"
    f" {', '.join(OWN_FOLDERS)}",
    holds=is_free_path,
)
BOUNDED_CONTENT = Rule(
    cel=f"self.map(file, has(file.content) ? size(file.content) : 0).sum() <= {MOST_FILE_CHARACTERS}",
    message=f"the contents of all files have at most {MOST_FILE_CHARACTERS} characters",
    holds=lambda files: sum(len(file.get("content", "")) for file in files) <= MOST_FILE_CHARACTERS,
)
SEPARATE_PATHS = Rule(
    cel="!self.exists(parent, self.exists(file, file.path.startsWith(parent.path + '/')))",
    message="a file cannot lie below the path of another one",
    holds=lambda files: not are_nested(files),
)
# CEL sees neither the namespace nor the administrator's list: the operator decides which ORG/NAME is refused. A name
# that an earlier release accepted passes until servedNames change, since else the status could not be written.
SERVED_NAMES_OF_ORGANIZATIONS = Rule(
    cel="!has(self.spec.model.servedNames)"
    " || oldSelf.hasValue() && has(oldSelf.value().spec.model.servedNames)"
    " && oldSelf.value().spec.model.servedNames == self.spec.model.servedNames"
    " || self.spec.model.servedNames.all(name, name.matches('^[^/]+(/[^/]+)?$'))",
    message="a served name has one slash at most, between ORG and NAME",
    holds=has_served_names_of_organizations,
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
FREE_ADAPTER_NAMES = Rule(
    cel="!has(self.spec.adapters) || self.spec.adapters.all(adapter, adapter.name != self.metadata.name"
    " && !(has(self.spec.model.servedNames) && adapter.name in self.spec.model.servedNames))",
    message="an adapter has another name than the model: neither metadata.name nor one of model.servedNames",
    holds=has_free_adapter_names,
    path="spec.adapters",
    options={"fieldPath": ".spec.adapters"},
)
ADAPTERS_ON_ITS_CLAIM = Rule(
    cel=f"!has(self.spec.adapters) || self.spec.adapters.all(adapter, !adapter.uri.startsWith('{VOLUME_CLAIM}')"
    f" || adapter.uri.split('/')[2] == (self.spec.model.uri.startsWith('{VOLUME_CLAIM}')"
    " ? self.spec.model.uri.split('/')[2] : self.spec.model.?cache.?claim.orValue('')))",
    message="an adapter's pvc:// is the claim that holds the model: that of model.uri, or model.cache.claim; mount"
    " others by podTemplate, and give the path",
    holds=has_adapters_on_its_claim,
    path="spec.adapters",
    options={"fieldPath": ".spec.adapters"},
)
# The rules of the whole object.
OBJECT_RULES = (NAME_RULE, SERVED_NAMES_OF_ORGANIZATIONS, FREE_ADAPTER_NAMES, ADAPTERS_ON_ITS_CLAIM)
