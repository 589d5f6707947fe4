// SPDX-License-Identifier: Apache-2.0
//
// Expects an error of one type whose message matches a regular expression.
#pragma once

#include <regex>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "reference/core/error.hpp"

namespace transducer::testing {

/// Success if `call` throws an Error whose message contains a match of `pattern` (ECMAScript).
template <class Error = InvalidArgument, class Call>
::testing::AssertionResult throws(Call&& call, const std::string& pattern) {
  try {
    std::forward<Call>(call)();
  } catch (const Error& error) {
    const std::string message = error.what();
    if (std::regex_search(message, std::regex(pattern))) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << "the message is \"" << message << "\", expected a match of /" << pattern << "/";
  } catch (const std::exception& error) {
    return ::testing::AssertionFailure() << "another type of error: " << error.what();
  }
  return ::testing::AssertionFailure() << "nothing was thrown, expected /" << pattern << "/";
}

}  // namespace transducer::testing
