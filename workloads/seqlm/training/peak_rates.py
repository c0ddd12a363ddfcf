"""Peak bf16 rates of devices, to which model FLOPs utilization (MFU) is relative."""

PEAK_BF16_FLOPS = {
    "A10G": 70e12,
    "A100": 312e12,
    "L4": 121e12,
    "L40S": 362e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
}
"""Dense rates of the tensor cores in FLOP/s, from NVIDIA's data sheets (half of the sparse rates)."""
NEURON_CORE_BF16_FLOPS = {
    "Trainium": 95e12,
    "Trainium2": 166.75e12,
}
"""Dense rates of one logical NeuronCore in FLOP/s: half of a Trainium (190 TFLOP/s), a quarter of a Trainium2
(667 TFLOP/s). Source: AWS Neuron documentation, "Trainium Architecture" and "Trainium2 Architecture"."""
