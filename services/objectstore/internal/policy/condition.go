package policy

import (
	"encoding/base64"
	"math/big"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// operator is a condition operator. It compares one value of a policy with one of a request.
type operator struct {
	holds func(want, have string) bool
	// negated operators hold when no value of the policy matches, and where the request lacks the key.
	negated bool
	// valid refuses values of the policy that could never match; nil takes all.
	valid func(want string) bool
}

var operators = map[string]operator{
	"StringEquals":              {holds: equal},
	"StringNotEquals":           {holds: equal, negated: true},
	"StringEqualsIgnoreCase":    {holds: strings.EqualFold},
	"StringNotEqualsIgnoreCase": {holds: strings.EqualFold, negated: true},
	"StringLike":                {holds: Like},
	"StringNotLike":             {holds: Like, negated: true},
	"ArnEquals":                 {holds: Like},
	"ArnLike":                   {holds: Like},
	"ArnNotEquals":              {holds: Like, negated: true},
	"ArnNotLike":                {holds: Like, negated: true},
	"Bool":                      {holds: strings.EqualFold, valid: isBool},
	"BinaryEquals":              {holds: binaryEqual, valid: isBase64},
	"IpAddress":                 {holds: inNetwork, valid: isNetwork},
	"NotIpAddress":              {holds: inNetwork, negated: true, valid: isNetwork},
	"NumericEquals":             {holds: numeric(func(c int) bool { return c == 0 }), valid: isNumber},
	"NumericNotEquals":          {holds: numeric(func(c int) bool { return c == 0 }), negated: true, valid: isNumber},
	"NumericLessThan":           {holds: numeric(func(c int) bool { return c < 0 }), valid: isNumber},
	"NumericLessThanEquals":     {holds: numeric(func(c int) bool { return c <= 0 }), valid: isNumber},
	"NumericGreaterThan":        {holds: numeric(func(c int) bool { return c > 0 }), valid: isNumber},
	"NumericGreaterThanEquals":  {holds: numeric(func(c int) bool { return c >= 0 }), valid: isNumber},
	"DateEquals":                {holds: dated(func(c int) bool { return c == 0 }), valid: isDate},
	"DateNotEquals":             {holds: dated(func(c int) bool { return c == 0 }), negated: true, valid: isDate},
	"DateLessThan":              {holds: dated(func(c int) bool { return c < 0 }), valid: isDate},
	"DateLessThanEquals":        {holds: dated(func(c int) bool { return c <= 0 }), valid: isDate},
	"DateGreaterThan":           {holds: dated(func(c int) bool { return c > 0 }), valid: isDate},
	"DateGreaterThanEquals":     {holds: dated(func(c int) bool { return c >= 0 }), valid: isDate},
}

// operatorNull asks whether a key is there. It is no comparison.
const operatorNull = "Null"

// qualified is an operator as a policy names it.
type qualified struct {
	operator
	null      bool
	ifExists  bool // holds where the request lacks the key
	everyHave bool // ForAllValues: every value of the request has to hold
	anyHave   bool // ForAnyValue: one of them, of those that are there
}

// operatorOf reads the name of an operator, such as ForAllValues:StringLikeIfExists.
func operatorOf(name string) (q qualified, ok bool) {
	name, q.everyHave = strings.CutPrefix(name, "ForAllValues:")
	if !q.everyHave {
		name, q.anyHave = strings.CutPrefix(name, "ForAnyValue:")
	}
	if name == operatorNull && !q.everyHave && !q.anyHave {
		q.null = true
		return q, true
	}
	name, q.ifExists = strings.CutSuffix(name, "IfExists")
	q.operator, ok = operators[name]
	return q, ok
}

// holds decides one operator of a condition for one key.
func holds(name string, want Texts, key string, r Request) bool {
	q, ok := operatorOf(name)
	if !ok {
		return false // no policy has it: it was refused
	}
	have := r.values(key)
	switch {
	case q.null:
		return slices.ContainsFunc(want, func(w string) bool { return strings.EqualFold(w, strconv.FormatBool(len(have) == 0)) })
	case len(have) == 0 && q.everyHave:
		return true
	case len(have) == 0 && q.anyHave:
		return false
	case len(have) == 0:
		return q.negated || q.ifExists
	}
	one := func(h string) bool {
		return slices.ContainsFunc(want, func(w string) bool { return q.holds(w, h) }) != q.negated
	}
	if q.everyHave || q.negated && !q.anyHave {
		return !slices.ContainsFunc(have, func(h string) bool { return !one(h) })
	}
	return slices.ContainsFunc(have, one)
}

// values gives those of a condition key; none where the request does not have it.
func (r Request) values(key string) []string {
	for i := len(r.Context) - 1; i >= 0; i-- {
		if strings.EqualFold(r.Context[i].Key, key) {
			return []string{r.Context[i].Value}
		}
	}
	// These follow from the user, so that requests need not carry them.
	switch {
	case strings.EqualFold(key, keyPrincipalARN) && r.User != "":
		return []string{arnBeforeUser + r.User}
	case strings.EqualFold(key, keyUserName) && r.User != "", strings.EqualFold(key, keyUserID) && r.User != "":
		return []string{r.User}
	case r.Lookup != nil:
		return r.Lookup(key)
	}
	return nil
}

// checkConditions refuses operators and keys that are not known, and values that can never match.
func (s *Statement) checkConditions() *Error {
	for name, keys := range s.Condition {
		q, ok := operatorOf(name)
		if !ok {
			return refuse("Invalid Condition type : "+name, "condition operator %q is not supported", name)
		}
		for k, want := range keys {
			if err := checkCondition(q, name, k, want); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkCondition(q qualified, name, key string, want Texts) *Error {
	known, ok := keyOf(key)
	switch {
	case !ok:
		return refuse("Policy has an invalid condition key", "condition key %q is not supported", key)
	case len(want) == 0:
		return refuse(badJSON, "condition key %q has no value", key)
	case known.isIP && !q.null && slices.ContainsFunc(want, func(w string) bool { return !isNetwork(w) }),
		known.isIP && q.null:
		return refuse("Invalid IP address in Conditions", "%s of %s: want addresses or networks", name, key)
	case q.valid != nil && slices.ContainsFunc(want, func(w string) bool { return !q.valid(w) }):
		return refuse("Invalid value in Conditions", "%s of %s: a value does not fit the operator", name, key)
	case q.null && slices.ContainsFunc(want, func(w string) bool { return !isBool(w) }):
		return refuse("Invalid value in Conditions", "%s of %s: want true or false", name, key)
	}
	return nil
}

func equal(want, have string) bool { return want == have }

func isBool(s string) bool { return strings.EqualFold(s, "true") || strings.EqualFold(s, "false") }

func isBase64(s string) bool {
	_, err := base64.StdEncoding.DecodeString(s)
	return err == nil
}

// binaryEqual compares the bytes that a policy has in base64 with those of the request.
func binaryEqual(want, have string) bool {
	b, err := base64.StdEncoding.DecodeString(want)
	return err == nil && string(b) == have
}

// network reads an address or a network in CIDR notation.
func network(s string) (netip.Prefix, bool) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Masked(), true
	}
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, false
	}
	return netip.PrefixFrom(a, a.BitLen()), true
}

func isNetwork(s string) bool {
	_, ok := network(s)
	return ok
}

func inNetwork(want, have string) bool {
	p, ok := network(want)
	a, err := netip.ParseAddr(have)
	return ok && err == nil && p.Contains(a.Unmap().WithZone(""))
}

// maxNumber bounds the text of a number, so that comparing one of a request costs little.
const maxNumber = 64

// number reads a decimal number exactly.
func number(s string) (*big.Rat, bool) {
	if s == "" || len(s) > maxNumber || strings.ContainsAny(s, "/eExXpP_") {
		return nil, false
	}
	return new(big.Rat).SetString(s)
}

func isNumber(s string) bool {
	_, ok := number(s)
	return ok
}

// numeric compares numbers; result is given the sign of have - want. What is no number never holds.
func numeric(result func(int) bool) func(want, have string) bool {
	return func(want, have string) bool {
		w, ok := number(want)
		h, also := number(have)
		return ok && also && result(h.Cmp(w))
	}
}

// instant reads a date of ISO 8601, or the seconds since 1970.
func instant(s string) (time.Time, bool) {
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04Z07:00", "2006-01-02"} {
		if t, err := time.Parse(layout, s); err == nil {
			return t, true
		}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	return time.Unix(n, 0), err == nil
}

func isDate(s string) bool {
	_, ok := instant(s)
	return ok
}

// dated is numeric for times.
func dated(result func(int) bool) func(want, have string) bool {
	return func(want, have string) bool {
		w, ok := instant(want)
		h, also := instant(have)
		return ok && also && result(h.Compare(w))
	}
}
