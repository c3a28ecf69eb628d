/* Entry point of libFuzzer: contains the kernels, compiled with sanitizers and the fuzzer's own counters, and
 * passes each input to exercise.py in an embedded Python. fuzz.py compiles and runs it. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>

PyMODINIT_FUNC PyInit_bert(void);
PyMODINIT_FUNC PyInit_unigram(void);
PyMODINIT_FUNC PyInit_wordpiece(void);
int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static PyObject *exercise, *bert, *unigram, *wordpiece;

/* A Python exception ends the program, as a fault in C does: libFuzzer keeps the input. */
static PyObject *needed(PyObject *object) {
    if (object == NULL) {
        PyErr_Print();
        abort();
    }
    return object;
}

int LLVMFuzzerInitialize(int *count, char ***arguments) {
    (void)count;
    (void)arguments;
    PyImport_AppendInittab("bert", PyInit_bert);
    PyImport_AppendInittab("unigram", PyInit_unigram);
    PyImport_AppendInittab("wordpiece", PyInit_wordpiece);
    Py_Initialize();
    PyObject *folder = needed(PyUnicode_FromString(getenv("EXERCISE_FOLDER")));
    PyList_Append(needed(PySys_GetObject("path")), folder);
    bert = needed(PyImport_ImportModule("bert"));
    unigram = needed(PyImport_ImportModule("unigram"));
    wordpiece = needed(PyImport_ImportModule("wordpiece"));
    exercise = needed(PyObject_GetAttrString(needed(PyImport_ImportModule("exercise")), "exercise"));
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Py_DECREF(needed(PyObject_CallFunction(exercise, "y#OOO", (const char *)data, (Py_ssize_t)size, bert, wordpiece,
                                           unigram)));
    return 0;
}
