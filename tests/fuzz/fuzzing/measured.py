"""Measured CSV files of every kind that ``validate`` and ``calibrate`` read: a few rows each, numbers made up."""

_SIZES = [(1 << power, ranks) for power in (12, 16, 20, 24, 28) for ranks in (2, 4, 8)]

MEASURED = {
    "collectives": "gpu,op,ranks,size_bytes,time_us\n"
    + "".join(f"A100-SXM,all_reduce,{ranks},{size},{15 + ranks + size / 2e5:.2f}\n" for size, ranks in _SIZES),
    "named": "gpu,operator,family,shape,dtype,options,timing,ms\n"
    "H100-SXM-80GB,linear,gemm,1024x2560x2560,fp32,,event,0.5\nH100-SXM-80GB,bmm,gemm,128x512x256x512,fp32,,event,0.4\n"
    "A100-SXM-80GB,add,elementwise,32768x2048,fp32,inputs=2,event,0.6\n"
    "A100-SXM-80GB,softmax,softmax,32768x1600,fp32,,event,0.4\n"
    "H100-SXM-80GB,ln,norm,32768x1600,fp32,kind=layer,event,0.3\n"
    "V100-SXM2,gelu,activation,32768x1600,fp32,kind=gelu,event,0.4\n",
    "gemm": "gpu,dtype,m,n,k,ms,source\n"
    "a100_sxm,bfloat16,3841,768,3584,0.1,made up\nh100_sxm,bfloat16,4096,4096,4096,0.25,made up\n"
    "h100_sxm,fp8,4096,4096,4096,0.15,made up\nh200_sxm,float16,128,8192,1024,0.02,made up\n",
    "fit": "gpu,dtype,m,n,k,ms,source\n"
    + "".join(
        f"a100_sxm,bfloat16,{m},{n},4096,{m * n * 4096 / 1.2e11 + 0.01:.5f},made up\n"
        for m in (128, 512, 1024, 4096, 8192)
        for n in (256, 1024, 2048, 4096, 8192)
    ),
    "attention": "gpu,dtype,batch,seq,heads,kv_heads,head_dim,window,ms,source\n"
    "a100_sxm,bfloat16,4,4096,32,8,128,0,9.5,made up\nh100_sxm,bfloat16,1,8192,16,16,64,0,1.5,made up\n"
    "h100_sxm,bfloat16,1,8192,16,2,128,1024,0.9,made up\n",
    "experts": "gpu,dtype,tokens,hidden,moe_ffn,topk,experts,tp,ep,distribution,ms,source\n"
    "a100_sxm,bfloat16,1024,4096,14336,2,8,1,1,balanced,6.1,made up\n"
    "h100_sxm,bfloat16,4096,2048,1408,6,64,1,8,power_law_1.01,0.9,made up\n",
    "kernels": "gpu,operator,family,shape,dtype,direction,time_s\n"
    "A100-PCIe,matmul forward,gemm,4096x1536x5120,bf16,forward,0.0002647\n"
    "A100-PCIe,matmul dgrad,gemm,4096x1536x5120,bf16,dgrad,0.0002829\n",
    "runs": "id,source,model,params_b,layers,hidden,ffn_hidden,heads,kv_heads,head_dim,vocab,experts,topk,moe_ffn,"
    "seq_len,global_batch,micro_batch,gpu,num_gpus,gpus_per_node,tp,pp,vpp,cp,ep,dp,zero_or_fsdp,sequence_parallel,recompute,"
    "precision,framework,interconnect,measured_metric,measured_value,notes,x_iter_time_s,x_peak_mem_gib,x_task\n"
    "a-1,made-up,llama2-7b,6.74,8,1024,2816,16,16,64,32000,,,,2048,32,1,H100-SXM-80GB,8,8,1,1,,1,,8,,,,bf16,"
    "NeMo 24.07 (Megatron-Core),,tokens_per_s_per_gpu,17120,none,0.9,,pretrain\n"
    "a-2,made-up,mixtral-8x7b,46.7,8,1024,2816,16,8,64,32000,8,2,1408,2048,32,2,A100-SXM-80GB,16,8,2,2,2,1,2,4,1,"
    "True,full,bf16,Megatron-Core,HDR 8x200G,iter_time_s,1.5,none,1.5,40.5,pretrain\n",
    "schema": "id,model,base_model,layers,gpu,gpus,nic_gbit_per_gpu,seq_length,global_batch,micro_batch,tp,pp,vpp,"
    "stage_layers,sharding,sequence_parallel,cuda_graphs,overlap_tp,precision,framework,task,step_time_s,peak_memory_gib,memory_kind,"
    "memory_stage,outcome,exclude\n"
    "c-1,ours,llama3-8b,8,H100-SXM-80GB,16,400,2048,32,1,2,2,1,3 5,zero1(4),true,false,true,bf16,megatron-core-2025,"
    "pretrain,0.5,20.5,reserved,first,ok,\n"
    "c-2,llama3-8b,,8,H100-SXM-80GB,16,400,2048,32,1,2,2,1,4 4,zero1,yes,no,no,fp8,Megatron-Core 0.12,"
    "pretrain,0.4,,,,crashed,\n"
    "c-3,llama3-8b,,8,H100-SXM-80GB,16,400,2048,32,1,2,2,1,by-cost,zero1,1,0,off,fp8,Megatron-Core 0.12,"
    "pretrain,0.4,18.5,device,,ok,the machine was shared\n",
    "memory": "id,source,model,params_b,layers,hidden,ffn_hidden,heads,kv_heads,vocab,seq_len,global_batch,micro_batch,"
    "gpu,num_gpus,gpus_per_node,tp,pp,dp,zero_or_fsdp,recompute,precision,framework,measured_metric,measured_value,"
    "x_iter_time_s,x_peak_mem_gib\n"
    "b-1,torchtitan,llama3-8b,8.03,8,1024,2816,16,8,128256,2048,16,2,H100-SXM-80GB,8,8,1,1,8,fsdp,selective,bf16,torchtitan,"
    "iter_time_s,0.5,0.5,22.5\n",
    "sweep": "id,model,base_model,layers,hidden,ffn_hidden,heads,kv_heads,vocab,seq_len,gpu,num_gpus,tp,pp,sharding,"
    "micro_batch,global_batch,recompute,precision,stage_layers,sequence_parallel,framework,sweep,repeat_of,outcome,"
    "x_peak_mem_gib,memory_kind,memory_stage,x_iter_time_s\n"
    "n-1,1B,llama-1B,16,2048,8192,32,32,131072,4096,H100-SXM-80GB,8,1,1,zero0,1,32,none,bf16,by-cost,,nanotron,ours,"
    "1B 8,ok,18.4,reserved,first,0.6\n"
    "n-2,1B,llama-1B,16,2048,8192,32,32,131072,4096,H100-SXM-80GB,8,2,2,zero1,2,16,none,bf16,by-cost,true,nanotron,ours,"
    ",ok,12.4,reserved,first,0.5\n",
}
"""Kind of measurements to a file of it."""
