#!/usr/bin/env python3
"""Samples and scores through vLLM's offline engine, as JSON lines that tvgpu import reads.

    pip install vllm safetensors numpy

WRITTEN AGAINST VLLM'S DOCUMENTED PYTHON API AND NEVER RUN BY THIS PROJECT: check the first lines of a dump against
docs/formats.md. A comparison with tvgpu as side a (end-of-text is an ordinary token here, so it must be there, too):

    tvgpu sample MODEL -o pair --side a --ignore-eos --store-k 20
    tvgpu score MODEL -o pair --side a --ignore-eos --store-k 20
    export_vllm.py sample MODEL -o pair b.jsonl            prompts, N and n as side a has them
    tvgpu import b.jsonl -o pair --side b --top-k 20
    export_vllm.py score MODEL -o pair --set a b-on-a.jsonl
    tvgpu import b-on-a.jsonl -o pair --side b --set a --top-k 20
    tvgpu score MODEL -o pair --side a --ignore-eos --store-k 20
    tvgpu estimate pair

--method replay forces the tokens one by one through a logits processor (vLLM's AdapterLogitsProcessor; raw log-probabilities
are taken before it, so they are those of the decode path). --method prompt asks for prompt_logprobs instead: the
trajectory scored at once, by prefill kernels. Temperature is 1: vLLM's raw log-probabilities are, whatever the sampler's.
"""
import json

import trace_export

K = 20  # log-probabilities a token: the most that vLLM returns unless max_logprobs says otherwise


def forcing():
    """A logits processor that leaves each request the next token of extra_args["forced"] alone."""
    import torch
    from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

    class Forced(AdapterLogitsProcessor):
        def is_argmax_invariant(self):
            return False

        def new_req_logits_processor(self, params):
            forced = (params.extra_args or {}).get("forced")
            if forced is None:
                return None

            def one(output_ids, logits):
                token = forced[len(output_ids)]
                value = logits[token].item()
                logits[:] = -torch.inf
                logits[token] = value
                return logits

            return one

    return Forced


def record(x):
    return {str(token): {"logprob": y.logprob, "rank": y.rank, "decoded_token": y.decoded_token} for token, y in x.items()}


def entry(output, trajectory, sampling):
    """A RequestOutput as the line that tvgpu import reads."""
    return {"trajectory": trajectory, "prompt_token_ids": list(output.prompt_token_ids), "sampling_params": sampling,
            "prompt_logprobs": output.prompt_logprobs and [x and record(x) for x in output.prompt_logprobs],
            "outputs": [{"index": o.index, "text": o.text, "token_ids": list(o.token_ids), "finish_reason": o.finish_reason,
                         "logprobs": o.logprobs and [record(x) for x in o.logprobs]} for o in output.outputs]}


def main():
    p = trace_export.dump_parser(__doc__, K)
    p.add_argument("--method", choices=["replay", "prompt"], default="replay", help="of score (default replay)")
    p.add_argument("--max-num-seqs", type=int, default=256, metavar="B", help="sequences at once (default 256)")
    args = p.parse_args()
    theirs = trace_export.samples_of(args)
    prompts, index, tokens = trace_export.prompts_of(theirs), theirs["prompt_index"], theirs["tokens"]
    n = tokens.shape[1]

    from vllm import LLM, SamplingParams  # --help works without it

    replay = args.command == "score" and args.method == "replay"
    llm = LLM(model=args.model, dtype=args.dtype, seed=args.seed, max_num_seqs=args.max_num_seqs, logprobs_mode="raw_logprobs",
              enable_prefix_caching=False, logits_processors=[forcing()] if replay else None)
    requests, params, sampling = [], [], {"temperature": 1.0, "top_k": args.top_k, "ignore_eos": True}
    for i, prompt in enumerate(index):
        ids, x = [int(y) for y in prompts[prompt]], [int(y) for y in tokens[i] if y >= 0]
        if args.command == "sample":
            params.append(SamplingParams(temperature=1, top_k=args.top_k, max_tokens=n, ignore_eos=True, logprobs=K))
        elif replay:
            params.append(SamplingParams(temperature=1, max_tokens=len(x), ignore_eos=True, logprobs=K,
                                         extra_args={"forced": x}))
        else:
            ids += x
            params.append(SamplingParams(temperature=1, max_tokens=1, prompt_logprobs=K))
        requests.append({"prompt_token_ids": ids})
    outputs = llm.generate(requests, params)
    with open(args.dump, "w") as f:
        for i, output in enumerate(outputs):  # in the order of the requests
            number = i if args.command == "sample" else int(theirs["trajectory"][i])
            f.write(json.dumps(entry(output, number, sampling)) + "\n")


if __name__ == "__main__":
    main()
