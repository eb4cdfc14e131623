package config

import (
	"net/url"
	"slices"
	"strings"
)

// URL is an address that may hold credentials: a user with a password, or a token among
// the query's parameters. Printed, it is without them; Reveal gives it whole.
type URL string

// shownParameters are those of Prometheus endpoints whose values are no secrets. Every
// other one is hidden: nobody can know what a target calls its token.
var shownParameters = []string{"match[]", "collect[]", "exclude[]", "name[]", "module", "format"}

// String hides the user information and the values of query parameters.
func (u URL) String() string {
	if u == "" {
		return ""
	}
	p, err := url.Parse(string(u))
	if err != nil {
		return redacted // for example a password with a stray character: its end is unknown
	}
	// The user goes too: some services take a token as the name.
	if p.User != nil {
		p.User = url.User("redacted")
	}
	// An opaque URL, such as "host:secret", has no parts that could be shown safely.
	if p.Opaque != "" {
		p.Opaque = "redacted"
	}
	if p.RawQuery != "" {
		p.RawQuery = shownQuery(p.RawQuery)
	}
	p.Fragment, p.RawFragment = "", ""
	return p.String()
}

// shownQuery keeps the order of the parameters.
func shownQuery(raw string) string {
	parts := strings.Split(raw, "&")
	for i, part := range parts {
		// Split by hand: url.ParseQuery would lose the order and drop parts that it cannot parse.
		name, value, has := strings.Cut(part, "=")
		plain, err := url.QueryUnescape(name)
		switch {
		case err == nil && slices.Contains(shownParameters, plain):
		case !has && part != "":
			parts[i] = "redacted" // a token without a name
		case value != "":
			parts[i] = name + "=redacted"
		}
	}
	return strings.Join(parts, "&")
}

// GoString hides what String hides.
func (u URL) GoString() string { return u.String() }

// MarshalText hides what String hides, so that JSON, YAML and slog do.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText takes the address.
func (u *URL) UnmarshalText(b []byte) error { *u = URL(b); return nil }

// Reveal gives the address whole.
func (u URL) Reveal() string { return string(u) }

// Secrets are the texts that String hides, for taking them out of messages of libraries.
func (u URL) Secrets() []string {
	p, err := url.Parse(string(u))
	if err != nil {
		return []string{string(u)}
	}
	var out []string
	// In every form in which a library may print it, plain or escaped.
	if password, ok := p.User.Password(); ok {
		out = append(out, password, url.QueryEscape(password), url.PathEscape(password))
	}
	for name, values := range p.Query() {
		if slices.Contains(shownParameters, name) {
			continue
		}
		for _, v := range values {
			out = append(out, v, url.QueryEscape(v))
		}
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(s string) bool { return s == "" })
}
