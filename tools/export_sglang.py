#!/usr/bin/env python3
"""Samples and scores through SGLang's offline engine, as JSON lines that tvgpu import reads.

    pip install "sglang[all]" safetensors numpy

WRITTEN AGAINST SGLANG'S DOCUMENTED PYTHON API AND NEVER RUN BY THIS PROJECT: check the first lines of a dump against
docs/formats.md. A comparison with tvgpu as side a (end-of-text is an ordinary token here, so it must be there, too):

    tvgpu sample MODEL -o pair --side a --ignore-eos --store-k 20
    tvgpu score MODEL -o pair --side a --ignore-eos --store-k 20
    export_sglang.py sample MODEL -o pair b.jsonl          prompts, N and n as side a has them
    tvgpu import b.jsonl -o pair --side b --top-k 20
    export_sglang.py score MODEL -o pair --set a b-on-a.jsonl
    tvgpu import b-on-a.jsonl -o pair --side b --set a --top-k 20
    tvgpu score MODEL -o pair --side a --ignore-eos --store-k 20
    tvgpu estimate pair

score takes input log-probabilities: each trajectory is scored at once, by prefill kernels, since the engine has no documented
way to force tokens through decode steps and record the log-probabilities from before the forcing. What prefill and decode
differ by is therefore part of the distance. Temperature is 1.
"""
import json

import trace_export

K = 20


def main():
    p = trace_export.dump_parser(__doc__, K)
    args = p.parse_args()
    theirs = trace_export.samples_of(args)
    prompts, tokens = trace_export.prompts_of(theirs), theirs["tokens"]

    import sglang  # --help works without it

    engine = sglang.Engine(model_path=args.model, dtype=args.dtype, random_seed=args.seed, disable_radix_cache=True)
    sampling = {"temperature": 1.0, "top_k": args.top_k, "ignore_eos": True}
    scoring = args.command == "score"
    requests = [[int(y) for y in prompts[prompt]] + ([int(y) for y in tokens[i] if y >= 0] if scoring else [])
                for i, prompt in enumerate(theirs["prompt_index"])]
    limit = {"max_new_tokens": 1 if scoring else tokens.shape[1]}
    outputs = engine.generate(input_ids=requests, sampling_params=sampling | limit, return_logprob=True, top_logprobs_num=K,
                              logprob_start_len=0 if scoring else -1)
    with open(args.dump, "w") as f:
        for i, (ids, output) in enumerate(zip(requests, outputs)):
            number = int(theirs["trajectory"][i]) if scoring else i
            f.write(json.dumps({"trajectory": number, "input_ids": ids, "sampling_params": sampling} | output) + "\n")
    engine.shutdown()


if __name__ == "__main__":
    main()
