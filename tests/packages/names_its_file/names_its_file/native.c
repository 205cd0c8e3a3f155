/* One function, which returns the path that this file was compiled from. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject *answer(PyObject *self, PyObject *none) { return PyUnicode_FromString(__FILE__); }

static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, "Return the path."}, {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods};
PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
