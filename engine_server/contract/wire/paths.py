"""Paths of the engine server's HTTP API that name a model in their request's body, which a router forwards."""

# Those that use a model's tokenizer alone.
TOKENIZER_PATHS = frozenset(
    {"/v1/messages/count_tokens", "/v1/responses/input_tokens", "/tokenize", "/detokenize"}
)

# Those whose bodies may be lists of token ids, and so have many more values than others.
TOKEN_ID_PATHS = frozenset(
    {"/v1/completions", "/v1/embeddings", "/pooling", "/classify", "/detokenize", "/invocations"}
)

# A POST to one of these is a request for a model. They are compared as they are written, without decoding.
MODEL_PATHS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/responses",
        "/v1/responses/input_tokens",
        "/v1/embeddings",
        "/pooling",
        "/classify",
        "/score",
        "/v1/score",
        "/rerank",
        "/v1/rerank",
        "/v2/rerank",
        "/tokenize",
        "/detokenize",
        "/invocations",
    }
)
