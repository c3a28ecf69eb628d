/* Word pieces of BERT's tokenizers. */

#include <Python.h>

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "embedkit.kernels.wordpiece",
    .m_doc = "Word pieces of BERT's tokenizers.",
};

PyMODINIT_FUNC
PyInit_wordpiece(void)
{
    return PyModuleDef_Init(&module);
}
