// The gradient of looking rows up: found[ids[n]] += grad[n], in any order; nothing has none.
//   grad (N, width), ids (N), found (R, width)

extern "C" __global__ void rows_backward(
    const float *grad, const long long *ids, float *found, int numbers, int width, int nothing)
{
    const int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= numbers) return;
    const long long id = ids[e / width];
    if (id != nothing) atomicAdd(found + id * width + e % width, grad[e]);
}
