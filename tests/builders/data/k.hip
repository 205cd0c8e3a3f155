#define __global__ __attribute__((global))
extern "C" __global__ void fill(float *x, int n) { int i = __builtin_amdgcn_workitem_id_x(); if (i < n) x[i] = 1.0f; }
