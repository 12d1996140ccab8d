// Looking rows up: found[n] = block[ids[n]].
//   block (R, width), ids (N), found (N, width)

extern "C" __global__ void rows_forward(
    const float *block, const long long *ids, float *found, int numbers, int width)
{
    const int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e < numbers) found[e] = block[ids[e / width] * width + e % width];
}

// Its gradient: found[ids[n]] += grad[n], in any order; nothing has none.
//   grad (N, width), ids (N), found (R, width)

extern "C" __global__ void rows_backward(
    const float *grad, const long long *ids, float *found, int numbers, int width, int nothing)
{
    const int e = blockIdx.x * blockDim.x + threadIdx.x;
    if (e >= numbers) return;
    const long long id = ids[e / width];
    if (id != nothing) atomicAdd(found + id * width + e % width, grad[e]);
}
