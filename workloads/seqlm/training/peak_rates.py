"""Peak rates of devices in bf16, which model FLOPs utilization (MFU) is relative to."""

PEAK_BF16_FLOPS = {
    # Dense bf16 tensor-core rates in FLOP/s, from NVIDIA's data sheets (half of the sparse figures).
    "A10G": 70e12,
    "A100": 312e12,
    "L4": 121e12,
    "L40S": 362e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
}
NEURON_CORE_BF16_FLOPS = {
    # Of one logical NeuronCore, dense: half of a Trainium (190 TFLOP/s), a quarter of a Trainium2 (667
    # TFLOP/s). AWS Neuron documentation, "Trainium Architecture" and "Trainium2 Architecture".
    "Trainium": 95e12,
    "Trainium2": 166.75e12,
}
