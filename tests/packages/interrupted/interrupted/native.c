/* One function, whose answer the build can set. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifndef TINY_ANSWER
#define TINY_ANSWER 42
#endif

static PyObject *answer(PyObject *self, PyObject *none) { return PyLong_FromLong(TINY_ANSWER); }

static PyMethodDef methods[] = {{"answer", answer, METH_NOARGS, "Give the answer."}, {NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, -1, methods};
PyMODINIT_FUNC PyInit__native(void) { return PyModule_Create(&module); }
