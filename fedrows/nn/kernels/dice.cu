// Dice, moments included: a thread has one feature of all B examples of a client.
//
//   p = sigmoid((x - mean) / sqrt(var + eps)),  y = x (p + (1 - p) alpha)
//   x, y (G, B, C); weight (G, B); alpha (G, C).  Compiled with B defined.

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ __forceinline__ float moments(
    const float *x, const float *weight, int size, float eps, float *own, float *share, float *mean)
{
    float whole = 0.0f, middle = 0.0f, var = 0.0f;
#pragma unroll
    for (int b = 0; b < B; b++) whole += weight[b];
    whole = whole > 0.0f ? whole : 1.0f;
#pragma unroll
    for (int b = 0; b < B; b++) {
        own[b] = x[b * size];
        share[b] = weight[b] / whole;
        middle += share[b] * own[b];
    }
#pragma unroll
    for (int b = 0; b < B; b++) var += share[b] * (own[b] - middle) * (own[b] - middle);
    *mean = middle;
    return rsqrtf(var + eps);
}

extern "C" __global__ void dice_forward(
    const float *x, const float *weight, const float *alpha, float *y, int groups, int size,
    double eps)
{
    const long long e = (long long)blockIdx.x * blockDim.x + threadIdx.x, group = e / size;
    if (group >= groups) return;
    const long long at = group * B * size + e % size;
    float own[B], share[B], mean;
    const float scale = moments(x + at, weight + group * B, size, eps, own, share, &mean);
#pragma unroll
    for (int b = 0; b < B; b++) {
        const float p = sigmoid((own[b] - mean) * scale);
        y[at + b * size] = own[b] * (p + (1.0f - p) * alpha[e]);
    }
}

extern "C" __global__ void dice_backward(
    const float *x, const float *weight, const float *alpha, const float *above, float *dx,
    float *d_alpha, int groups, int size, double eps)
{
    const long long e = (long long)blockIdx.x * blockDim.x + threadIdx.x, group = e / size;
    if (group >= groups) return;
    const long long at = group * B * size + e % size;
    const float a = alpha[e];
    float own[B], share[B], dz[B], mean, of_alpha = 0.0f, sum = 0.0f, along = 0.0f;
    const float scale = moments(x + at, weight + group * B, size, eps, own, share, &mean);
#pragma unroll
    for (int b = 0; b < B; b++) {
        const float dy = above[at + b * size], gap = own[b] - mean, p = sigmoid(gap * scale);
        of_alpha += dy * own[b] * (1.0f - p);
        dz[b] = dy * own[b] * (1.0f - a) * p * (1.0f - p);  // of the normalised x
        sum += dz[b];
        along += dz[b] * gap;
        dx[at + b * size] = dy * (p + (1.0f - p) * a);
    }
#pragma unroll
    for (int b = 0; b < B; b++)  // directly, through the mean and through the variance
        dx[at + b * size] += scale * (dz[b] - share[b] * (sum + scale * scale * along * (own[b] - mean)));
    d_alpha[e] = of_alpha;
}
