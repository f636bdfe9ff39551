# Fairlead's image: engine, router and operator, chosen by the first argument. With --target control-plane a small one
# that has no engine.
#   TORCH_INDEX  the package index that torch comes from (a CPU build, another CUDA); unset: the ordinary index
#   REVISION     the commit, for the image's labels
ARG BASE=docker.io/library/python:3.12-slim
ARG VERSION=0.3.0

# What is to be installed, apart from the rest of pyproject.toml, so that only a changed dependency installs anew.
FROM ${BASE} AS requirements
COPY pyproject.toml /source/
RUN python3 -c "import tomllib; p = tomllib.load(open('/source/pyproject.toml', 'rb'))['project']; print(*p['dependencies'], *p['optional-dependencies']['tracing'], sep='\n')" > /requirements.txt \
    && python3 -c "import tomllib; p = tomllib.load(open('/source/pyproject.toml', 'rb')); print(*p['dependency-groups']['control-plane'], *p['project']['optional-dependencies']['tracing'], sep='\n')" > /control-plane.txt

FROM ${BASE} AS dependencies
ARG TORCH_INDEX=
ENV PIP_CONSTRAINT=/constraints.txt PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/fairlead
COPY constraints.txt /
COPY --from=requirements /requirements.txt /
# Headers, tests and build tools of torch are a fifth of it, and nothing is compiled against them in a pod.
# The classes for each Kubernetes API are half of that package; the operator uses its ApiClient alone.
RUN if [ -n "${TORCH_INDEX}" ]; then /opt/fairlead/bin/pip install --no-deps --index-url "${TORCH_INDEX}" torch; fi \
    && /opt/fairlead/bin/pip install -r /requirements.txt \
    && cd /opt/fairlead/lib/python3*/site-packages/torch \
    && rm -rf include test bin/protoc* bin/test_* bin/*Test lib/*_test.so lib/*.a \
    && find ../kubernetes -path '*/client/api/*_api.*' -delete

FROM ${BASE} AS kernels
RUN command -v g++ || { apt-get update && apt-get install --yes --no-install-recommends g++; }
WORKDIR /source
COPY engine_server/modeling/native engine_server/modeling/native
RUN python3 -m engine_server.modeling.native.build --all

FROM ${BASE} AS wheel
ENV PIP_CONSTRAINT=/constraints.txt PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
COPY constraints.txt /
RUN python3 -m venv /opt/build && /opt/build/bin/pip install hatchling
COPY pyproject.toml hatch_build.py README.md LICENSE /source/
COPY engine_server /source/engine_server
COPY operator /source/operator
COPY --from=kernels /source/engine_server/modeling/native /source/engine_server/modeling/native
RUN /opt/build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /dist /source

FROM ${BASE} AS control-plane-root
ENV PIP_CONSTRAINT=/build/constraints.txt PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN useradd --uid 65532 --user-group --create-home --shell /usr/sbin/nologin fairlead \
    && python3 -m venv --without-pip /opt/fairlead
COPY constraints.txt /build/
COPY --from=requirements /control-plane.txt /build/
# The classes for each Kubernetes API are half of that package; the operator uses its ApiClient alone.
RUN python3 -m pip --python /opt/fairlead install --no-compile -r /build/control-plane.txt \
    && rm -r /opt/fairlead/lib/python3*/site-packages/kubernetes/client/api/*_api.py \
        /opt/fairlead/lib/python3*/site-packages/kubernetes/aio/client/api/*_api.py
COPY --from=wheel /dist /build/
# Bytecode of the imported modules alone, since most of the Kubernetes package is never imported.
RUN python3 -m pip --python /opt/fairlead install --no-compile --no-deps /build/*.whl \
    && for command in operator router; do /opt/fairlead/bin/fairlead $command --help >/dev/null || exit 1; done \
    && rm -rf /build /usr/share/doc /usr/share/man /usr/share/locale /var/cache/* /var/lib/apt/lists/* \
        /usr/lib/python3/dist-packages/pip* /usr/lib/python3/dist-packages/setuptools* \
        /usr/lib/python3*/ensurepip /usr/share/python-wheels /usr/local/lib/python3*/ensurepip \
        /usr/local/lib/python3*/site-packages/pip*

# From scratch, so that what was removed takes no space.
FROM scratch AS control-plane
ARG VERSION
ARG REVISION=
LABEL org.opencontainers.image.title="Fairlead, without engine" \
    org.opencontainers.image.description="Operator and router of Fairlead, which serves large language models on Kubernetes" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.licenses="Apache-2.0"
COPY --from=control-plane-root / /
ENV PATH=/opt/fairlead/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
USER 65532:65532
WORKDIR /home/fairlead
ENTRYPOINT ["fairlead"]

FROM ${BASE}
ARG VERSION
ARG REVISION=
LABEL org.opencontainers.image.title="Fairlead" \
    org.opencontainers.image.description="Operator, router and engine of Fairlead, which serves large language models on Kubernetes" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.licenses="Apache-2.0"
# No NVIDIA_VISIBLE_DEVICES: a pod sees the GPUs that it asked for, and a pod without any sees none.
ENV PATH=/opt/fairlead/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
RUN useradd --uid 65532 --user-group --create-home --shell /usr/sbin/nologin fairlead
COPY --from=dependencies /opt/fairlead /opt/fairlead
# Triton, which torch's CUDA builds bring along, compiles its driver where the kernels run.
RUN if [ -d /opt/fairlead/lib/python3*/site-packages/triton ] && ! command -v gcc >/dev/null; then \
        apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*; \
    fi
# Copied, not mounted: buildah keeps a layer that mounts another stage, even after that stage has changed.
COPY --from=wheel /dist /dist
# It needs no index and no constraints, and a configuration of pip may name files that only its machine has.
RUN PIP_CONFIG_FILE=/dev/null /opt/fairlead/bin/pip install --no-cache-dir --no-deps --compile /dist/*.whl
USER 65532:65532
WORKDIR /home/fairlead
ENTRYPOINT ["fairlead"]
