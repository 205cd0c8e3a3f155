/* Links, as shared objects may lack symbols, and cannot be loaded. */
#include <Python.h>

long symbol_of_no_library(void);

static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(symbol_of_no_library()); }

static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, "Give the answer."}, {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods};
PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
