// Package postpolicy decides what the policy document of a browser's upload allows: a list of conditions on the fields of
// the form, and on the size of the file. Errors are *s3err.Error.
package postpolicy

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"time"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
)

// Policy is a document that was read.
type Policy struct {
	expires    time.Time
	conditions []condition
	// Min and Max are the least and the largest size of the file, bytes; Max is -1 without a bound.
	Min, Max int64
}

// condition is on one field. text is as the document has it.
type condition struct {
	field, value, text string
	prefix             bool
}

func malformed(format string, args ...any) error {
	return s3err.InvalidPolicyDocument.With("Invalid Policy: "+format, args...)
}

func denied(format string, args ...any) error {
	return s3err.AccessDenied.With("Invalid according to Policy: "+format, args...)
}

// Parse reads a document in base64, as a form has it.
func Parse(encoded string) (*Policy, error) {
	encoded = strings.TrimSpace(encoded)
	if encoded == "" {
		return nil, malformed("Expecting '{' but found End-of-Input")
	}
	text, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(encoded, "="))
	if err != nil {
		return nil, malformed("invalid Base64 encoding.")
	}
	var doc map[string]json.RawMessage
	if json.Unmarshal(text, &doc) != nil {
		return nil, errJSON
	}
	if err := unique(text); err != nil {
		return nil, err
	}
	for name := range doc {
		if name != "expiration" && name != "conditions" {
			return nil, malformed("Unexpected: %q", name)
		}
	}
	p := &Policy{Max: -1}
	if p.expires, err = expiration(doc["expiration"]); err != nil {
		return nil, err
	}
	raw, ok := doc["conditions"]
	if !ok {
		return nil, malformed("Policy missing conditions.")
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil || list == nil {
		return nil, malformed("Invalid 'conditions' value: must be a List.")
	}
	for _, c := range list {
		if err := p.add(c); err != nil {
			return nil, err
		}
	}
	return p, nil
}

var errJSON = malformed("Invalid JSON.")

// unique refuses a document with a name that is there twice: which of both counts would be a matter of taste.
func unique(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if _, err := d.Token(); err != nil {
		return errJSON
	}
	seen := map[string]bool{}
	for d.More() {
		name, err := d.Token()
		text, ok := name.(string)
		if err != nil || !ok || seen[text] {
			return errJSON
		}
		seen[text] = true
		var skip json.RawMessage
		if d.Decode(&skip) != nil {
			return errJSON
		}
	}
	if _, err := d.Token(); err != nil {
		return errJSON
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errJSON
	}
	return nil
}

func expiration(raw json.RawMessage) (time.Time, error) {
	if raw == nil {
		return time.Time{}, malformed("Policy missing expiration.")
	}
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return time.Time{}, errJSON
	}
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}, malformed("Invalid 'expiration' value: '%s'", text)
	}
	return t, nil
}

// add reads one condition: {"field": "value"}, or a list that begins with an operation.
func (p *Policy) add(raw json.RawMessage) error {
	switch raw[0] {
	case '{':
		return p.addExact(raw)
	case '[':
	default:
		return malformed("Invalid condition test: must be a List or Object.")
	}
	var list []json.RawMessage
	if json.Unmarshal(raw, &list) != nil {
		return errJSON
	}
	if len(list) == 0 {
		return malformed("Invalid Condition: missing operation identifier.")
	}
	var operation string
	if json.Unmarshal(list[0], &operation) != nil {
		return errJSON
	}
	switch operation {
	case "eq", "starts-with", "content-length-range":
	default:
		return malformed("Invalid Condition: unknown operation '%s'.", operation)
	}
	if len(list) != 3 {
		return malformed("Invalid %s: wrong number of arguments.", operation)
	}
	if operation == "content-length-range" {
		return p.addRange(list[1], list[2])
	}
	var field, value string
	if json.Unmarshal(list[1], &field) != nil || json.Unmarshal(list[2], &value) != nil {
		return errJSON
	}
	var text bytes.Buffer
	_ = json.Compact(&text, raw) // it was read
	name, ok := strings.CutPrefix(field, "$")
	if !ok || name == "" {
		return denied("Policy Condition failed: %s", text.String())
	}
	p.conditions = append(p.conditions, condition{strings.ToLower(name), value, text.String(), operation == "starts-with"})
	return nil
}

func (p *Policy) addExact(raw json.RawMessage) error {
	var m map[string]json.RawMessage
	if json.Unmarshal(raw, &m) != nil {
		return errJSON
	}
	if len(m) != 1 {
		return malformed("Invalid Simple-Condition: Simple-Conditions must have exactly one property specified.")
	}
	for name, v := range m {
		var value string
		if json.Unmarshal(v, &value) != nil {
			return malformed("Invalid Simple-Condition: value must be a string.")
		}
		name = strings.ToLower(name)
		p.conditions = append(p.conditions, condition{field: name, value: value, text: `["eq", "$` + name + `", "` + value + `"]`})
	}
	return nil
}

// addRange reads the bounds of the size. Of several ranges all count.
func (p *Policy) addRange(least, most json.RawMessage) error {
	low, ok := wholeNumber(least)
	high, also := wholeNumber(most)
	if !ok || !also {
		return errJSON
	}
	p.Min = max(p.Min, low)
	if p.Max < 0 || high < p.Max {
		p.Max = high
	}
	return nil
}

// wholeNumber reads a number of bytes, which may be in quotes, as many programs write it.
func wholeNumber(raw json.RawMessage) (int64, bool) {
	n, err := strconv.ParseInt(strings.Trim(string(raw), `"`), 10, 64)
	return n, err == nil && n >= 0
}

// Check decides whether a form is allowed at the time now. fields has its fields by their names in lower case, with the
// bucket and the key as they will be used. The size of the file is for the caller.
func (p *Policy) Check(now time.Time, fields map[string]string) error {
	if !now.Before(p.expires) {
		return denied("Policy expired.")
	}
	covered := map[string]bool{}
	for _, c := range p.conditions {
		covered[c.field] = true
	}
	for name := range fields {
		if !covered[name] && !isFree(name) {
			return denied("Extra input fields: %s", name)
		}
	}
	for _, c := range p.conditions {
		if got, ok := fields[c.field]; !ok || !c.holds(got) {
			return denied("Policy Condition failed: %s", c.text)
		}
	}
	return nil
}

// CheckSize decides about the size of the file, bytes.
func (p *Policy) CheckSize(size int64) error {
	switch {
	case p.Max >= 0 && size > p.Max:
		return s3err.EntityTooLarge.Detail("ProposedSize", strconv.FormatInt(size, 10)).Detail("MaxSizeAllowed", strconv.FormatInt(p.Max, 10))
	case size < p.Min:
		return s3err.EntityTooSmall.Detail("ProposedSize", strconv.FormatInt(size, 10)).Detail("MinSizeAllowed", strconv.FormatInt(p.Min, 10))
	}
	return nil
}

// isFree reports whether a field needs no condition.
func isFree(name string) bool {
	return name == "policy" || name == "x-amz-signature" || name == "file" || strings.HasPrefix(name, "x-ignore-")
}

func (c condition) holds(got string) bool {
	if !c.prefix {
		return got == c.value
	}
	// A list of content types is a list: each has to begin so.
	if c.field == "content-type" {
		for part := range strings.SplitSeq(got, ",") {
			if !strings.HasPrefix(strings.TrimSpace(part), c.value) {
				return false
			}
		}
		return true
	}
	return strings.HasPrefix(got, c.value)
}
