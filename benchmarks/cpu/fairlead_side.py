"""Our engine over a GGUF file: reads prompts as JSON from standard input, answers with seconds."""

import json
import sys
import time

from engine_server import LLM, SamplingParams
from engine_server.telemetry.metrics_snapshot import Counter


def main() -> None:
    llm = LLM(sys.argv[1], max_model_len=8192, max_num_seqs=64, enable_prefix_caching=False)
    kernels = llm.llm_engine.config.device_config.kernels_in_use
    for line in sys.stdin:
        request = json.loads(line)
        params = SamplingParams(temperature=0, max_tokens=request["new_tokens"], ignore_eos=True)
        started = time.perf_counter()
        llm.generate(request["prompts"], params, use_tqdm=False)
        seconds = time.perf_counter() - started
        counters = [one for one in llm.get_metrics() if isinstance(one, Counter)]
        steps = {one.labels["run"]: one.value for one in counters if one.name == "fairlead:steps"}
        print(json.dumps({"seconds": seconds, "kernels": kernels, "steps": steps}), flush=True)


if __name__ == "__main__":
    main()
