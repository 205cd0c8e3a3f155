#include <Python.h>
#include <hip/not_there.h>
