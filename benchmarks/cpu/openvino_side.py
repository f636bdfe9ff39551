"""OpenVINO GenAI over a GGUF file: reads prompts as JSON from standard input, answers with seconds."""

import json
import sys
import time

import openvino_genai  # type: ignore[import-not-found]


def main() -> None:
    pipeline = openvino_genai.LLMPipeline(sys.argv[1], "CPU")
    config = openvino_genai.GenerationConfig()
    config.ignore_eos, config.apply_chat_template = True, False
    for line in sys.stdin:
        request = json.loads(line)
        config.max_new_tokens = request["new_tokens"]
        started = time.perf_counter()
        pipeline.generate(request["prompts"], config)
        print(json.dumps({"seconds": time.perf_counter() - started}), flush=True)


if __name__ == "__main__":
    main()
