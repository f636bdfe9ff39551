"""The configuration of the engine's container."""

from typing import Annotated

from msgspec import Meta

from llm_operator.api import rules
from llm_operator.api.schema import LIST_KEYS, LIST_TYPE, Name, Object, Positive, Section, about, ruled

# The key of an entry of a ConfigMap or Secret.
DataKey = Annotated[str, Meta(pattern=r"^[-._a-zA-Z0-9]+$", max_length=253)]

# Linux starts no program with a longer variable.
MOST_VALUE_CHARACTERS = 128 * 1024


class EnvVar(Section, frozen=True):
    name: Annotated[Name, about("The name of the variable.")]
    value: Annotated[
        Annotated[str, Meta(max_length=MOST_VALUE_CHARACTERS)] | None, about("The value, as text.")
    ] = None
    value_from: Annotated[
        Object | None,
        about(
            "The source of the value, as in a container's env: configMapKeyRef, secretKeyRef, fieldRef, ..."
        ),
    ] = None


class ObjectRef(Section, frozen=True):
    name: Annotated[Name, about("The name of the object, in the same namespace.")]
    optional: Annotated[bool, about("Start without the object if it does not exist.")] = False


class EnvFrom(Section, frozen=True):
    prefix: Annotated[
        Annotated[str, Meta(max_length=253)] | None,
        about("Text in front of the name of each variable; none by default."),
    ] = None
    config_map_ref: Annotated[ObjectRef | None, about("The ConfigMap whose entries become variables.")] = None
    secret_ref: Annotated[ObjectRef | None, about("The Secret whose entries become variables.")] = None


class Entry(Section, frozen=True):
    name: Annotated[Name, about("The name of the object, in the same namespace.")]
    key: Annotated[DataKey, about("The key of the entry that is the file.")]


class File(Section, frozen=True):
    path: Annotated[
        str,
        Meta(min_length=2, max_length=512),
        ruled(rules.FREE_PATH),
        about("The absolute path in the container. It must not lie below a folder that the operator mounts."),
    ]
    content: Annotated[
        Annotated[str, Meta(max_length=rules.MOST_FILE_CHARACTERS)] | None,
        about("The text of the file. It is no secret: it is kept in a ConfigMap NAME-files-HASH."),
    ] = None
    config_map: Annotated[
        Entry | None,
        about(
            "An entry of a ConfigMap. Later changes of the ConfigMap reach only replicas that start afterwards."
        ),
    ] = None
    secret: Annotated[
        Entry | None,
        about("An entry of a Secret. Later changes of the Secret reach only replicas that start afterwards."),
    ] = None


class Engine(Section, frozen=True):
    image: Annotated[
        Annotated[str, Meta(min_length=1, max_length=1024)] | None,
        about(
            "The image of the engine; by default the operator's, which then stays until a field changes that pods"
            " depend on."
        ),
    ] = None
    max_model_len: Annotated[
        Positive | None,
        about(
            "The longest context in tokens, prompt and answer together; by default the model's own. A shorter one"
            " lets more requests share the GPU's memory."
        ),
    ] = None
    args: Annotated[
        tuple[Annotated[str, Meta(max_length=4096), ruled(rules.NOT_OWNED)], ...],
        Meta(max_length=128),
        about(
            "Further flags of `fairlead engine`, as in a container's args, but for those that the operator sets from"
            " other fields."
        ),
    ] = ()
    env: Annotated[
        tuple[Annotated[EnvVar, ruled(rules.ONE_VALUE)], ...],
        Meta(max_length=128, extra_json_schema={LIST_TYPE: "map", LIST_KEYS: ["name"]}),
        about(
            "Environment variables of the engine, and of the container that fetches the model, as in a container's"
            " env. The download into a model cache has only HTTPS_PROXY, NO_PROXY and AWS_SKIP_SIGNATURE of them."
        ),
    ] = ()
    env_from: Annotated[
        tuple[Annotated[EnvFrom, ruled(rules.ONE_OBJECT)], ...],
        Meta(max_length=32),
        about(
            "ConfigMaps and Secrets whose entries become environment variables, as in a container's envFrom; env"
            " takes precedence. Changes of the objects reach only replicas that start afterwards. The download into a"
            " model cache has none of them."
        ),
    ] = ()
    files: Annotated[
        tuple[Annotated[File, ruled(rules.ONE_CONTENT)], ...],
        Meta(max_length=16, extra_json_schema={LIST_TYPE: "map", LIST_KEYS: ["path"]}),
        ruled(rules.BOUNDED_CONTENT, rules.SEPARATE_PATHS),
        about(
            "Files that the engine, and the container that fetches the model, find at a path, read-only: a chat"
            " template, certificates. At most 16. The download into a model cache has none of them."
        ),
    ] = ()
