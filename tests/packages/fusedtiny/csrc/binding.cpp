#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <c10/core/DeviceType.h>

#include "fusedtiny_shared.h"

int launch(float *values, int count);

#ifdef FUSEDTINY_UNDEFINED
namespace c10 {
int no_such_function_of_torch(int);
}
#endif

static PyObject *device(PyObject *, PyObject *) {
#ifdef FUSEDTINY_UNDEFINED
  c10::no_such_function_of_torch(1);
#endif
  return PyUnicode_FromString(c10::DeviceTypeName(c10::DeviceType::CPU).c_str());
}

static PyObject *run(PyObject *, PyObject *) { return PyLong_FromLong(launch(nullptr, FUSEDTINY_SHARED)); }

static PyMethodDef methods[] = {{"device", device, METH_NOARGS, ""}, {"run", run, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "fusedtiny_cuda", nullptr, -1, methods};

PyMODINIT_FUNC PyInit_fusedtiny_cuda(void) { return PyModule_Create(&module); }
