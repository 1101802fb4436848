"""Makes tests/goldens/models: tiny random checkpoints, logits of the reference implementation in f64, and its own bf16 errors.

    pip install torch transformers safetensors numpy && python3 tools/make_goldens.py tests/goldens/models

The stored files come from transformers 5.24. Logits are stored as f32, which moves them by 2.5e-8 relative to the f64 ones,
a hundred-thousandth of the errors they are compared with. Casting the model to bf16 rounds its rope frequencies too, and they stay
rounded in the f64 run: about 1.5e-3 of the logits, which tests/reference_model.c does alike where it has to meet them. Another version of torch draws other weights: make all anew.
"""
import json, pathlib, sys
import numpy as np, torch
from safetensors.numpy import save_file
from transformers import (Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM)

torch.set_num_threads(1)
OUT = pathlib.Path(sys.argv[1])
base = dict(vocab_size=512, max_position_embeddings=1024, rms_norm_eps=1e-6, bos_token_id=0, eos_token_id=1, pad_token_id=0,
            use_sliding_window=False)
small = dict(hidden_size=64, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
             rope_theta=1000000.0, **base)
specs = {
    'qwen3-dense': (Qwen3ForCausalLM, Qwen3Config(num_hidden_layers=3, tie_word_embeddings=True, **small)),
    'qwen3-dense-untied': (Qwen3ForCausalLM, Qwen3Config(
        hidden_size=64, intermediate_size=160, num_hidden_layers=2, num_attention_heads=8, num_key_value_heads=1, head_dim=64,
        rope_theta=10000.0, tie_word_embeddings=False, **base)),
    'qwen2-dense': (Qwen2ForCausalLM, Qwen2Config(
        hidden_size=96, intermediate_size=256, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
        rope_theta=1000000.0, tie_word_embeddings=False, **base)),
    'qwen3-moe': (Qwen3MoeForCausalLM, Qwen3MoeConfig(
        moe_intermediate_size=48, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True, decoder_sparse_step=1,
        mlp_only_layers=[], num_hidden_layers=3, tie_word_embeddings=False, **small)),
    'qwen3-moe-mixed': (Qwen3MoeForCausalLM, Qwen3MoeConfig(
        moe_intermediate_size=48, num_experts=8, num_experts_per_tok=4, norm_topk_prob=False, decoder_sparse_step=2,
        mlp_only_layers=[0], num_hidden_layers=4, tie_word_embeddings=False, **small)),
}

errors = {}
for i, (name, (cls, cfg)) in enumerate(specs.items()):
    torch.manual_seed(100 + i)
    m = cls(cfg)
    with torch.no_grad():  # wide enough for peaked distributions and for norms and biases that matter
        for n, p in m.named_parameters():
            if n.endswith('bias'): p.normal_(0, 0.5)
            elif 'norm' in n: p.uniform_(0.5, 1.5)
            elif 'embed' in n: p.normal_(0, 1.0)
            elif 'lm_head' in n: p.normal_(0, 3.0 / cfg.hidden_size ** 0.5)
            elif 'mlp.gate.' in n and 'experts' not in n: p.normal_(0, 2.0 / cfg.hidden_size ** 0.5)
            else: p.normal_(0, 1.6 / p.shape[-1] ** 0.5)
    m = m.to(torch.bfloat16).eval()
    d = OUT / name
    m.save_pretrained(d)
    # the published Qwen files use the older key names: write those, as a user's folder would have them
    c = json.loads((d / 'config.json').read_text())
    c['torch_dtype'] = c.pop('dtype', 'bfloat16')
    rope = c.pop('rope_parameters', None)
    if rope: c['rope_theta'] = rope['rope_theta']; c['rope_scaling'] = None
    c.pop('layer_types', None)
    if name == 'qwen3-moe' and 'num_local_experts' in c: c['num_experts'] = c.pop('num_local_experts')
    (d / 'config.json').write_text(json.dumps(c, indent=2) + '\n')

    tokens = torch.randint(0, cfg.vocab_size, (3, 40), generator=torch.Generator().manual_seed(7 + i))
    with torch.no_grad():
        m.config._attn_implementation = 'eager'
        eager = m(input_ids=tokens).logits
        m.config._attn_implementation = 'sdpa'
        sdpa = m(input_ids=tokens).logits
        m.config._attn_implementation = 'eager'
        m = m.double()
        m.config._experts_implementation = 'eager'
        exact = m(input_ids=tokens).logits.double()
    save_file({'tokens': tokens.numpy().astype(np.int32), 'logits': exact.numpy().astype(np.float32)}, d / 'reference.safetensors')
    rel = lambda a: float((a.double() - exact).norm() / exact.norm())
    errors[name] = dict(bf16_eager=rel(eager), bf16_sdpa=rel(sdpa))
    print(name, errors[name])
(OUT / 'errors.json').write_text(json.dumps(errors, indent=2) + '\n')
