// SPDX-License-Identifier: Apache-2.0
//
// The extension module flash_transducer._core: each bind_* function adds one part of the C++
// library.

#include <pybind11/pybind11.h>

PYBIND11_MODULE(_core, module) { module.attr("__version__") = TX_VERSION; }
