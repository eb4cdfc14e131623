package s3api

import (
	"encoding/xml"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"golang.org/x/net/http/httpguts"

	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3err"
	"lightmetrics.dev/lightmetrics/services/objectstore/internal/s3xml"
)

// settingCORS is the name under which the engine keeps a bucket's rules for scripts of other origins.
const settingCORS = "cors"

const (
	// maxCORSRules and maxCORSID are AWS's limits.
	maxCORSRules = 100
	maxCORSID    = 255
)

// corsMethods are those that a rule may allow.
var corsMethods = []string{http.MethodGet, http.MethodPut, http.MethodHead, http.MethodPost, http.MethodDelete}

type corsConfiguration struct {
	XMLName xml.Name   `xml:"CORSConfiguration"`
	Rules   []corsRule `xml:"CORSRule"`
	Other   []element  `xml:",any"`
}

type corsRule struct {
	ID             string   `xml:"ID,omitempty"`
	AllowedHeaders []string `xml:"AllowedHeader"`
	AllowedMethods []string `xml:"AllowedMethod"`
	AllowedOrigins []string `xml:"AllowedOrigin"`
	ExposeHeaders  []string `xml:"ExposeHeader"`
	MaxAge         *int     `xml:"MaxAgeSeconds"`

	Other []element `xml:",any"`
}

// element catches those that are not known, so that they are refused and not dropped.
type element struct{ XMLName xml.Name }

func parseCORS(text []byte) (*corsConfiguration, error) {
	var c corsConfiguration
	if xml.Unmarshal(text, &c) != nil || len(c.Rules) == 0 || len(c.Rules) > maxCORSRules || len(c.Other) > 0 {
		return nil, s3err.MalformedXML
	}
	c.XMLName = xml.Name{Space: xmlns, Local: "CORSConfiguration"}
	for _, r := range c.Rules {
		if err := r.check(); err != nil {
			return nil, err
		}
	}
	return &c, nil
}

func (r corsRule) check() error {
	if len(r.AllowedMethods) == 0 || len(r.AllowedOrigins) == 0 || utf8.RuneCountInString(r.ID) > maxCORSID || len(r.Other) > 0 {
		return s3err.MalformedXML
	}
	for _, m := range r.AllowedMethods {
		if !slices.Contains(corsMethods, m) {
			return s3err.InvalidRequest.With("Found unsupported HTTP method in CORS config. Unsupported method is %s", m)
		}
	}
	for _, o := range r.AllowedOrigins {
		if strings.Count(o, "*") > 1 {
			return s3err.InvalidRequest.With(`AllowedOrigin "%s" can not have more than one wildcard.`, o)
		}
	}
	for _, h := range r.AllowedHeaders {
		if strings.Count(h, "*") > 1 {
			return s3err.InvalidRequest.With(`AllowedHeader "%s" can not have more than one wildcard.`, h)
		}
	}
	for _, h := range slices.Concat(r.AllowedHeaders, r.ExposeHeaders) {
		if !httpguts.ValidHeaderFieldName(h) {
			return s3err.InvalidRequest.With(`AllowedHeader "%s" contains invalid character.`, h)
		}
	}
	return nil
}

// likeOne reports whether s is the pattern, in which one * is any text.
func likeOne(pattern, s string) bool {
	before, after, wild := strings.Cut(pattern, "*")
	if !wild {
		return pattern == s
	}
	return len(s) >= len(before)+len(after) && strings.HasPrefix(s, before) && strings.HasSuffix(s, after)
}

// match gives the first rule for a request, and what to answer as the allowed origin. headers are in lower case.
func (c *corsConfiguration) match(origin, method string, headers []string) (rule *corsRule, allowed string) {
	for i := range c.Rules {
		r := &c.Rules[i]
		at := slices.IndexFunc(r.AllowedOrigins, func(p string) bool { return likeOne(p, origin) })
		if at < 0 || !slices.Contains(r.AllowedMethods, method) {
			continue
		}
		if slices.ContainsFunc(headers, func(h string) bool {
			return !slices.ContainsFunc(r.AllowedHeaders, func(p string) bool { return likeOne(strings.ToLower(p), h) })
		}) {
			continue
		}
		if r.AllowedOrigins[at] == "*" {
			return r, "*"
		}
		return r, origin
	}
	return nil, ""
}

// cors gives the rules of the request's bucket; nil when it has none.
func (c *call) cors() (*corsConfiguration, error) {
	b, err := c.Engine.Bucket(c.bucket)
	if err != nil || b.Settings[settingCORS] == nil {
		return nil, err
	}
	return c.corsRules.get(c.bucket, b.Settings[settingCORS], parseCORS)
}

// allowOrigin sets the headers by which a browser gives the answer to the script that asked. It is done first, so that a
// script sees errors too.
func (c *call) allowOrigin() {
	origin := c.r.Header.Get("Origin")
	if origin == "" || c.bucket == "" {
		return
	}
	conf, err := c.cors()
	if err != nil || conf == nil {
		return // a bucket that is not there is reported by the operation
	}
	if rule, allowed := conf.match(origin, c.r.Method, nil); rule != nil {
		c.setCORS(rule, allowed)
	}
}

// setCORS sets what a rule allows.
func (c *call) setCORS(r *corsRule, origin string) {
	h := c.w.Header()
	h.Set("Access-Control-Allow-Origin", origin)
	h.Set("Access-Control-Allow-Methods", strings.Join(r.AllowedMethods, ", "))
	// Credentials are for origins that are named: a browser takes none with *.
	h.Set("Access-Control-Allow-Credentials", strconv.FormatBool(origin != "*"))
	h.Set("Vary", "Origin, Access-Control-Request-Headers, Access-Control-Request-Method")
	// The ETag is what a script needs of every part that it uploads, and it tells nothing that the body does not.
	expose := r.ExposeHeaders
	if !slices.ContainsFunc(expose, func(e string) bool { return strings.EqualFold(e, "ETag") }) {
		expose = append(slices.Clip(expose), "ETag")
	}
	h.Set("Access-Control-Expose-Headers", strings.Join(expose, ", "))
	if r.MaxAge != nil {
		h.Set("Access-Control-Max-Age", strconv.Itoa(*r.MaxAge))
	}
}

// preflight answers OPTIONS: what a browser asks before a script's request. It needs no signature, and tells of the bucket
// only whether it is there and what it lets scripts do.
func (c *call) preflight() error {
	origin, method := c.r.Header.Get("Origin"), c.r.Header.Get("Access-Control-Request-Method")
	switch {
	case c.bucket == "":
		return notAllowed(c.r.Method)
	case origin == "":
		return s3err.BadRequest.With("Insufficient information. Origin request header needed.")
	case !slices.Contains(corsMethods, method):
		return s3err.BadRequest.With("Invalid Access-Control-Request-Method: %s", method)
	}
	headers, err := requestedHeaders(c.r.Header["Access-Control-Request-Headers"])
	if err != nil {
		return err
	}
	conf, err := c.cors()
	switch {
	case err != nil:
		return err
	case conf == nil:
		return s3err.CORSNotEnabled.Detail("Method", method).Detail("ResourceType", "OBJECT")
	}
	rule, allowed := conf.match(origin, method, headers)
	if rule == nil {
		return s3err.CORSForbidden.Detail("Method", method).Detail("ResourceType", "OBJECT")
	}
	c.setCORS(rule, allowed)
	if len(headers) > 0 {
		c.w.Header().Set("Access-Control-Allow-Headers", strings.Join(headers, ", "))
	}
	c.w.WriteHeader(http.StatusOK)
	return nil
}

// requestedHeaders reads a list of names, into lower case.
func requestedHeaders(values []string) (names []string, err error) {
	for _, v := range values {
		if v == "" {
			continue
		}
		for name := range strings.SplitSeq(v, ",") {
			trimmed := strings.Trim(name, " ")
			if !httpguts.ValidHeaderFieldName(trimmed) {
				return nil, s3err.BadRequest.With(`Access-Control-Request-Headers "%s" contains invalid character.`, name)
			}
			names = append(names, strings.ToLower(trimmed))
		}
	}
	return names, nil
}

func (c *call) getCORS() error {
	return c.getSetting("GetBucketCORS", settingCORS, s3err.NoSuchCORSConfiguration)
}

func (c *call) putCORS() error {
	return c.putSetting("PutBucketCORS", settingCORS, maxSettingBytes, &corsConfiguration{}, func(text []byte) (any, error) { return parseCORS(text) }, http.StatusOK)
}

func (c *call) deleteCORS() error { return c.deleteSetting("PutBucketCORS", settingCORS) }

// getSetting answers with a setting as it is kept; none when there is none.
func (c *call) getSetting(action, name string, none error) error {
	if err := c.authorizeBucket(action); err != nil {
		return err
	}
	b, err := c.Engine.Bucket(c.bucket)
	if err != nil {
		return err
	}
	text := b.Settings[name]
	if text == nil {
		return none
	}
	c.setHeader("Content-Type", "application/xml")
	_, _ = fmt.Fprintf(c.w, "%s%s", xml.Header, text) // the client went away: nothing to do
	return nil
}

// putSetting keeps what parse makes of the request's body, a document of the struct schema, as XML.
func (c *call) putSetting(action, name string, limit int64, schema any, parse func([]byte) (any, error), status int) error {
	if err := c.authorizeBucket(action); err != nil {
		return err
	}
	if c.r.ContentLength > limit {
		return s3err.MaxMessageLength.Detail("MaxMessageLengthBytes", strconv.FormatInt(limit, 10))
	}
	body, err := c.readAll(limit)
	if err != nil {
		return err
	}
	// Here and not in parse, which reads what is stored too: that has the form that is written below.
	if s3xml.Check(body, schema) != nil {
		return s3err.MalformedXML
	}
	v, err := parse(body)
	if err != nil {
		return err
	}
	text, err := xml.Marshal(v)
	if err != nil {
		return err
	}
	return c.storeSetting(name, text, status)
}

func (c *call) deleteSetting(action, name string) error {
	if err := c.authorizeBucket(action); err != nil {
		return err
	}
	return c.storeSetting(name, nil, http.StatusNoContent)
}
