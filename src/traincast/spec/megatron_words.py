"""Flags of Megatron-LM that do not change the time of a step, and those that do but are not modelled.

Source: Megatron-LM, megatron/training/arguments.py.
"""

_MODEL = """
num-layers hidden-size ffn-hidden-size num-attention-heads group-query-attention num-query-groups kv-channels swiglu
squared-relu quick-geglu openai-gelu normalization disable-bias-linear add-qkv-bias qk-layernorm
position-embedding-type max-position-embeddings untie-embeddings-and-output-weights vocab-size tokenizer-type
tokenizer-model num-experts moe-router-topk moe-ffn-hidden-size moe-shared-expert-intermediate-size moe-layer-freq
moe-expert-capacity-factor multi-latent-attention q-lora-rank kv-lora-rank qk-head-dim qk-pos-emb-head-dim
v-head-dim mtp-num-layers window-size
"""

_RUN = """
num-layers-per-virtual-pipeline-stage pipeline-model-parallel-layout bf16 fp16 fp8-format fp8 fp8-recipe fp4-format
fp4 fp4-recipe recompute-activations recompute-granularity recompute-method recompute-num-layers recompute-modules
use-distributed-optimizer use-torch-fsdp2 use-megatron-fsdp use-custom-fsdp data-parallel-sharding-strategy
num-distributed-optimizer-instances no-overlap-p2p-communication overlap-p2p-communication cp-comm-type
grad-reduce-in-bf16 accumulate-allreduce-grads-in-fp32 main-grads-dtype
enable-cuda-graph external-cuda-graph cuda-graph-impl use-flash-attn attention-backend nproc-per-node nnodes
"""

USED = frozenset((_MODEL + _RUN).split())
"""Flags that are read one by one."""

HARMLESS = (
    r"(?:train|valid|test|per-split)?-?data(?:-.*)?",
    r".*data-path",
    r"data-cache-path",
    r"(?:load|save|pretrained-checkpoint|ckpt-.*|async-save|use-dist-ckpt|dist-ckpt-.*|use-checkpoint-.*)",
    r"(?:save|load|checkpoint|non-persistent)-.*",
    r"no-(?:load|save)-.*",
    r"(?:vocab-file|merge-file|tiktoken-.*|tokenizer-.*|hf-.*)",
    r"(?:train|eval|exit|log|tensorboard|wandb|timing|profile|logging|one-logger|straggler|inprocess)-.*",
    r"(?:train|eval)-(?:iters|samples|interval)",
    r"no-(?:log|one-logger|initialization|check-for-nan)-?.*",
    r"(?:lr|min-lr|decoupled|weight-decay|start-weight-decay|end-weight-decay|adam|sgd|clip-grad|init-method)(?:-.*)?",
    r"(?:weight-decay-incr-style|optimizer|loss-scale|initial-loss-scale|min-loss-scale|hysteresis)(?:-window)?",
    r"(?:override-opt-param-scheduler|override-opt_param-scheduler|use-checkpoint-opt-param-scheduler)",
    r"(?:attention-dropout|hidden-dropout|seed|split|mock-data|norm-epsilon|layernorm-epsilon)",
    r"(?:distributed-backend|distributed-timeout-minutes|lazy-mpu-init|local-rank|rank)",
    r"(?:master-addr|master-port|node-rank|nproc|rdzv-.*|max-restarts|standalone|tee|redirects)",
    r"(?:rotary-.*|use-rotary-position-embeddings|no-position-embedding|use-rope-scaling|rope-.*|no-rope-.*)",
    r"(?:apply-layernorm-1p|apply-query-key-layer-scaling|attention-softmax-in-fp32|no-rope-fusion)",
    r"(?:moe-router-.*|moe-aux-loss-coeff|moe-z-loss-coeff|moe-input-jitter-eps|moe-per-layer-logging)",
    r"(?:mtp-loss-scaling-factor|expert-.*-lr|create-attention-mask-in-dataloader|dataloader-type|num-workers)",
    r"(?:no-create-attention-mask-in-dataloader|no-mmap-bin-files|reset-.*|eod-mask-loss|use-mcore-models)",
    r"(?:use-legacy-models|disable-legacy-.*|deprecated-.*|spec|finetune|manual-gc.*|empty-unused-memory-level)",
    r"(?:check-.*|no-check-.*|enable-experimental|export-.*|enable-ft-package|calculate-per-token-loss)",
    r"(?:fp8-amax-.*|fp8-margin|fp8-interval)",
    r"(?:masked-softmax-fusion|bias-gelu-fusion|bias-swiglu-fusion|bias-dropout-fusion|cross-entropy-.*)",
    r"(?:use-tp-pp-dp-mapping|high-priority-stream-groups|nccl-.*|use-nccl-ub|sharp-.*|use-sharp)",
    r"(?:gradient-accumulation-fusion|iterations-to-skip|skip-train|decrease-batch-size-if-needed|result-rejected-.*)",
    r"(?:te-.*|transformer-impl|no-align-grad-reduce|use-te|moe-grouped-gemm|moe-use-legacy-grouped-gemm)",
    r"(?:moe-token-drop-policy|enable-one-logger|cuda-graph-warmup-steps|mscale.*|beta-.*)",
    r"(?:original-max-position-embeddings|scaling-factor|no-persist-layer-norm|persist-layer-norm|bert-.*)",
)
"""Patterns of whole flags: paths, logs, checkpoints, the optimizer's numbers, and choices among kernels that do the
same work."""

NOT_MODELLED = {
    "overlap-moe-expert-parallel-comm": "expert all-to-alls are hidden by the share of the stack",
    "moe-shared-expert-overlap": "shared experts run on the compute stream",
    "moe-token-dispatcher-type": "tokens are exchanged by an all-to-all, hidden by the share of the stack",
    "moe-enable-deepep": "tokens are exchanged by an all-to-all, hidden by the share of the stack",
    "moe-permute-fusion": "permutation costs what the stack says",
    "moe-pad-expert-input-to-capacity": "experts get the tokens they are sent",
    "cuda-graph-scope": "a graph holds the whole layer",
    "delay-wgrad-compute": "weight gradients are computed in their usual place",
    "no-gradient-accumulation-fusion": "gradients are accumulated as the stack does",
    "no-masked-softmax-fusion": "kernels are fused as the stack does",
    "no-bias-gelu-fusion": "kernels are fused as the stack does",
    "no-bias-swiglu-fusion": "kernels are fused as the stack does",
    "no-bias-dropout-fusion": "kernels are fused as the stack does",
    "ddp-bucket-size": "gradients are reduced layer by layer",
    "ddp-average-in-collective": "gradients are summed",
    "rampup-batch-size": "the full batch is forecast",
    "fp8-param-gather": "parameters are gathered in 16 bits",
    "fp32-residual-connection": "residuals are kept in 16 bits",
    "first-last-layers-bf16": "all layers have the same precision",
    "num-layers-at-start-in-bf16": "all layers have the same precision",
    "num-layers-at-end-in-bf16": "all layers have the same precision",
    "optimizer-cpu-offload": "the optimizer runs on the GPU",
    "cpu-offloading-num-layers": "activations stay on the GPU",
    "fine-grained-activation-offloading": "activations stay on the GPU",
    "defer-embedding-wgrad-compute": "the embedding's weight gradient stays in its place",
    "tp-comm-bulk-dgrad": "the share of hidden TP transfers is the stack's",
    "microbatch-group-size-per-virtual-pipeline-stage": "groups of an interleaved pipeline have pp microbatches",
    "hierarchical-context-parallel-sizes": "context parallelism has one level",
    "use-precision-aware-optimizer": "optimizer states have their usual types",
    "exp-avg-dtype": "optimizer states have their usual types",
    "exp-avg-sq-dtype": "optimizer states have their usual types",
    "distribute-saved-activations": "saved activations are whole on each rank",
    "encoder-num-layers": "models have one stack of layers",
    "decoder-num-layers": "models have one stack of layers",
    "hybrid-override-pattern": "state-space layers are not described",
}
"""Flag and what is done instead."""
