// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/prices.h"

#include <nlohmann/json.hpp>

#include "millrace/plan/catalogue.h"

namespace millrace::plan {

namespace {

using Json = nlohmann::json;

std::string text_of(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

Result<Price> price_of(const Json& entry, size_t number) {
  const auto wrong = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidArgument, "entry {} of the price book {}", number, what);
  };
  if (!entry.is_object()) return wrong("is no object");
  Price price{.item = text_of(entry, "item"),
              .region = text_of(entry, "region"),
              .purchase = text_of(entry, "purchase"),
              .source = text_of(entry, "source")};
  if (price.item.empty()) return wrong("has no \"item\"");
  const auto usd = entry.find("usd_per_hour");
  if (usd == entry.end() || !usd->is_number() || usd->get<double>() < 0)
    return wrong("has no \"usd_per_hour\" of 0 or more");
  price.usd_per_hour = usd->get<double>();
  if (const auto gpus = entry.find("gpus"); gpus != entry.end() && gpus->is_number_integer()) {
    price.gpus = gpus->get<int64_t>();
  } else if (const auto instance = find_instance(price.item)) {
    price.gpus = instance->gpus;
  }
  if (price.gpus <= 0) return wrong("has no \"gpus\" of 1 or more");
  return price;
}

}  // namespace

const PriceBook& builtin_prices() {
  static const PriceBook kBook{
      .date = "2024-12",
      .source = "Millrace's built-in prices",
      .prices = {
          {"p5e.48xlarge", "us-east-2", "capacity-block", 43.26, 8, "AWS's page on capacity blocks, late 2024"},
          {"p5e.48xlarge", "ap-southeast-3", "capacity-block", 34.60, 8, "cluster guide: 2,768 USD an hour for 80"}}};
  return kBook;
}

Result<PriceBook> parse_prices(std::string_view json) {
  const Json book = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!book.is_object())
    return fail(ErrorCode::kInvalidArgument, "a price book is a JSON object with \"date\" and \"prices\"");
  PriceBook parsed{.date = text_of(book, "date"), .source = text_of(book, "source"), .prices = {}};
  if (parsed.date.empty()) return fail(ErrorCode::kInvalidArgument, "the price book has no \"date\"");
  if (parsed.source.empty()) parsed.source = "price book";
  const auto prices = book.find("prices");
  if (prices == book.end() || !prices->is_array())
    return fail(ErrorCode::kInvalidArgument, "the price book has no \"prices\"");
  for (const Json& entry : *prices) {
    ASSIGN_OR_RETURN(Price price, price_of(entry, parsed.prices.size() + 1));
    parsed.prices.push_back(std::move(price));
  }
  return parsed;
}

std::optional<Price> find_price(const PriceBook& book, std::string_view item, std::string_view region,
                                std::string_view purchase) {
  std::optional<Price> best;
  for (const Price& price : book.prices) {
    const bool fits = price.item == item && (region.empty() || price.region == region) &&
                      (purchase.empty() || price.purchase == purchase);
    if (fits && (!best || price.usd_per_gpu_hour() < best->usd_per_gpu_hour())) best = price;
  }
  return best;
}

}  // namespace millrace::plan
