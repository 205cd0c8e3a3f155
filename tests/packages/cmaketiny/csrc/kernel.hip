#include <hip/hip_runtime.h>

__global__ void root(float *values, int count) {
  int index = blockIdx.x * blockDim.x + threadIdx.x;
  if (index < count) values[index] = expf(sqrtf(values[index])); /* from the device libraries */
}

extern "C" int cmaketiny_root(float *values, int count) {
  if (count == 0) return 0;
  root<<<(count + 255) / 256, 256>>>(values, count);
  return static_cast<int>(hipGetLastError());
}
