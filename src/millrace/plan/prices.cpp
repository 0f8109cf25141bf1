// SPDX-License-Identifier: Apache-2.0
#include "millrace/plan/prices.h"

#include <nlohmann/json.hpp>

#include "millrace/base/text/json_members.h"
#include "millrace/plan/catalogue.h"
#include "millrace/plan/detail/table.h"
#include "millrace/plan/instances.h"

namespace millrace::plan {

namespace {

using Json = nlohmann::json;

Result<Price> price_of(const Json& entry, size_t number) {
  const auto wrong = [&](std::string_view what) {
    return fail(ErrorCode::kInvalidArgument, "entry {} of the price book {}", number, what);
  };
  if (!entry.is_object()) return wrong("is not an object");
  Price price{.item = text_or_empty(entry, "item"),
              .region = text_or_empty(entry, "region"),
              .purchase = text_or_empty(entry, "purchase"),
              .source = text_or_empty(entry, "source")};
  if (price.item.empty()) return wrong("has no \"item\"");
  const auto usd = number_at(entry, "usd_per_hour");
  if (!usd || *usd < 0) return wrong("has no \"usd_per_hour\" of 0 or more");
  price.usd_per_hour = *usd;
  if (const auto gpus = integer_at(entry, "gpus")) {
    price.gpus = *gpus;
  } else if (const Instance* instance = find_instance(price.item); instance != nullptr) {
    price.gpus = instance->gpus;
  }
  if (price.gpus <= 0) return wrong("has no \"gpus\" of 1 or more");
  return price;
}

}  // namespace

const PriceBook& builtin_prices() {
  static const PriceBook kBook = [] {
    const Source& source = source_of("prices");
    PriceBook book{.date = std::string(source.date), .source = std::string(source.text), .prices = {}};
    for (const data::Row& row : data::rows_of(data::k_prices, "item,gpus,usd_per_hour,region,purchase,source")) {
      book.prices.push_back({.item = std::string(row[0]),
                             .region = std::string(row[3]),
                             .purchase = std::string(row[4]),
                             .usd_per_hour = data::number(row[2]),
                             .gpus = data::whole(row[1]),
                             .source = std::string(row[5])});
    }
    return book;
  }();
  return kBook;
}

Result<PriceBook> parse_prices(std::string_view json) {
  const Json book = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!book.is_object())
    return fail(ErrorCode::kInvalidArgument, "a price book is a JSON object with \"date\" and \"prices\"");
  PriceBook parsed{.date = text_or_empty(book, "date"), .source = text_or_empty(book, "source"), .prices = {}};
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
