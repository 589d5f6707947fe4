// SPDX-License-Identifier: Apache-2.0
//
// A LossRequest and a LossResult from dictionaries of arrays and options. The Python layer decides
// which outputs exist and allocates them; names are those of the C++ fields.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include <pybind11/pybind11.h>

#include "reference/core/request.hpp"
#include "reference/core/workspace.hpp"

namespace transducer::python {

/// Everything one call borrows. Views into `caller` and the dictionaries: keep both while it lives.
struct CallFromPython {
  LossRequest request;
  LossResult result;
  Options options;
  std::string caller;
};

/// Fills a call. Throws InvalidArgument for a word or an option that is not known.
void fill_call(const std::string& caller, const VariantTable& variant, const pybind11::dict& given,
               const pybind11::dict& wanted, const pybind11::dict& chosen, CallFromPython& call);

/// What an entry of a dictionary of arrays refers to: an Array, or a DLPack capsule, which is read here.
TensorRef tensor_ref_of(const pybind11::handle& value, const std::string& name,
                        const std::string& caller);

/// Polls Python's signal handlers, at most every 50 ms, so that Ctrl-C ends a long call.
bool signal_is_pending(void* context);

/// 64-byte aligned memory of the planned size.
class ScratchMemory {
 public:
  explicit ScratchMemory(std::size_t bytes);
  ~ScratchMemory();
  ScratchMemory(const ScratchMemory&) = delete;
  ScratchMemory& operator=(const ScratchMemory&) = delete;

  std::span<std::byte> span() const { return {data_, bytes_}; }

 private:
  std::byte* data_;
  std::size_t bytes_;
};

}  // namespace transducer::python
