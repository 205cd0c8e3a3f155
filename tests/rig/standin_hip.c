/* Stands in for HIP's runtime where there is no GPU: "device memory" is host memory. */
#include <stdlib.h>
#include <string.h>
int hipDriverGetVersion(int *version) { *version = 70253211; return 0; }
int hipRuntimeGetVersion(int *version) { *version = 70253211; return 0; }
int hipMalloc(void **pointer, size_t size) { *pointer = malloc(size); return *pointer ? 0 : 2; }
int hipFree(void *pointer) { free(pointer); return 0; }
int hipMemcpy(void *to, const void *from, size_t size, int kind) { (void)kind; memcpy(to, from, size); return 0; }
int hipPointerGetAttribute(void *data, int attribute, void *pointer) { (void)attribute; (void)pointer; *(unsigned *)data = 0; return 0; }
int hipMemGetHandleForAddressRange(void *handle, void *pointer, size_t size, int type, unsigned long long flags)
{ (void)handle; (void)pointer; (void)size; (void)type; (void)flags; return 801; }
