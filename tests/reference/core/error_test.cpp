// SPDX-License-Identifier: Apache-2.0
#include "reference/core/error.hpp"

#include <ostream>
#include <stdexcept>
#include <type_traits>

#include <gtest/gtest.h>

#include "reference/core/cancel.hpp"
#include "tests/support/messages.hpp"

namespace transducer {
namespace {

using testing::throws;

TEST(Error, ConcatJoinsAnything) {
  EXPECT_EQ(concat("T = ", 3, ", p = ", 0.5, ' ', std::string("done")), "T = 3, p = 0.5 done");
}

TEST(Error, CheckThrowsOnlyIfTheConditionFails) {
  EXPECT_NO_THROW(check(true, "unused"));
  EXPECT_TRUE(throws([] { check(false, "loss: U is ", -1, ", expected 0 or more"); },
                     "^loss: U is -1, expected 0 or more$"));
}

struct CountsPrints {
  int* count;

  operator std::string_view()
      const {  // NOLINT(google-explicit-constructor): as messages convert it
    ++*count;
    return "";
  }
};

TEST(Error, CheckFormatsOnFailureOnly) {
  int printed = 0;
  check(true, CountsPrints{&printed});
  EXPECT_EQ(printed, 0);
  EXPECT_THROW(check(false, CountsPrints{&printed}), InvalidArgument);
  EXPECT_EQ(printed, 1);
}

TEST(Error, TypesAreTheStandardOnesThatBindingsTranslate) {
  static_assert(std::is_base_of_v<std::invalid_argument, InvalidArgument>);
  static_assert(std::is_base_of_v<std::runtime_error, Unsupported>);
  static_assert(std::is_base_of_v<std::runtime_error, NotBuilt>);
  static_assert(std::is_base_of_v<std::runtime_error, DeviceError>);
  static_assert(std::is_base_of_v<std::runtime_error, Cancelled>);
  static_assert(!std::is_base_of_v<Unsupported, InvalidArgument>);
}

TEST(Error, PollAsksTheCallbackWithItsContext) {
  int calls = 0;
  Options options;
  EXPECT_NO_THROW(poll_cancelled(options, "loss"));  // no callback
  options.cancelled_context = &calls;
  options.cancelled = [](void* context) { return ++*static_cast<int*>(context) > 1; };
  EXPECT_NO_THROW(poll_cancelled(options, "loss"));
  EXPECT_TRUE(throws<Cancelled>([&] { poll_cancelled(options, "ft.loss"); },
                                "^ft.loss: cancelled by the caller; outputs are incomplete$"));
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace transducer
