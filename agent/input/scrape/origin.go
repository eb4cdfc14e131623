package scrape

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"lightmetrics.dev/lightmetrics/internal/platform/config"
)

// maxRedirects is Go's and Prometheus' bound.
const maxRedirects = 10

// Errors of redirects.
var (
	errOtherOrigin = errors.New("redirected to another scheme, host or port, where this target's credentials must not go: set url to where the metrics are")
	errRedirects   = fmt.Errorf("more than %d redirects", maxRedirects)
)

// redirect decides whether a redirect is followed. By itself Go's client sends credentials to every
// port of the host and to its subdomains, and the whole query, which may hold a token, as Referer.
func (t Target) redirect(req *http.Request, via []*http.Request) error {
	switch {
	case t.FollowRedirects != nil && !*t.FollowRedirects:
		return http.ErrUseLastResponse
	case len(via) > maxRedirects:
		return errRedirects
	case t.hasCredentials() && origin(req.URL) != origin(via[0].URL):
		return errOtherOrigin
	}
	req.Header.Del("Referer")
	return nil
}

// hasCredentials reports whether a request proves who sends it; a token in the query is not
// sent on by a redirect.
func (t Target) hasCredentials() bool {
	return t.BearerToken != "" || t.Username != "" || t.TLS.CertFile != ""
}

// origin gives the scheme, host and port of a URL in canonical form.
func origin(u *url.URL) string {
	scheme, port := strings.ToLower(u.Scheme), u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[scheme]
	}
	return scheme + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// liftUserInfo moves the user and password of the URL into the settings for them, so that
// no request and no error of net/http has them in its URL.
func (t Target) liftUserInfo() Target {
	u, err := url.Parse(t.URL.Reveal())
	if err != nil || u.User == nil {
		return t
	}
	password, _ := u.User.Password()
	t.Username, t.Password = u.User.Username(), config.Secret(password)
	u.User = nil
	t.URL = config.URL(u.String())
	return t
}

// minSecret is the length from which a secret is removed from messages. A shorter one would occur
// by chance in other words.
const minSecret = 4

// describe gives err without secrets. Errors of net/http quote URLs, and those about a strange
// answer quote what the server sent, which may repeat the request.
func (t Target) describe(err error) error {
	var ue *url.Error
	if errors.As(err, &ue) {
		err = &url.Error{Op: ue.Op, URL: config.URL(ue.URL).String(), Err: ue.Err}
	}
	text := err.Error()
	clean := text
	for _, s := range append(t.URL.Secrets(), t.BearerToken.Reveal(), t.Password.Reveal()) {
		if len(s) >= minSecret {
			clean = strings.ReplaceAll(clean, s, "<redacted>")
		}
	}
	if clean != text {
		return errors.New(clean)
	}
	return err
}
