package scrape

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"lightmetrics.dev/lightmetrics/agent/input"
	"lightmetrics.dev/lightmetrics/agent/input/inputtest"
	"lightmetrics.dev/lightmetrics/internal/platform/config"
	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
)

const secret = "hunter2"

// leaks lists the headers of a request that hold the secret.
func leaks(r *http.Request) (out []string) {
	for name, values := range r.Header {
		if v := strings.Join(values, ","); name == "Authorization" || strings.Contains(v, secret) {
			out = append(out, name+": "+v)
		}
	}
	return out
}

// TestCredentialsStayWithTheirOrigin: Go's client takes another port of the host for the
// same place. A redirect there is not followed with credentials, and never tells the query.
func TestCredentialsStayWithTheirOrigin(t *testing.T) {
	var leaked []string
	asked := 0
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked++
		leaked = append(leaked, leaks(r)...)
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "a 1\n")
	}))
	defer other.Close()
	first := httptest.NewServer(http.RedirectHandler(other.URL+"/metrics", http.StatusFound))
	defer first.Close()
	withUser := strings.Replace(first.URL, "http://", "http://u:"+secret+"@", 1)
	for name, c := range map[string]struct {
		target Target
		follow bool
	}{
		"bearer token":     {Target{URL: config.URL(first.URL), BearerToken: secret}, false},
		"basic":            {Target{URL: config.URL(first.URL), Username: "u", Password: secret}, false},
		"user information": {Target{URL: config.URL(withUser)}, false},
		"query":            {Target{URL: config.URL(first.URL + "/m?token=" + secret)}, true},
		"none":             {Target{URL: config.URL(first.URL)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			asked, leaked = 0, nil
			c.target.Job = "j"
			f := newFixture(t, c.target)
			up := f.scrape()["up"].v
			if len(leaked) > 0 {
				t.Errorf("the other server got %v", leaked)
			}
			if follow := asked > 0; follow != c.follow || (up == 1) != c.follow {
				t.Errorf("followed %v, up %v: want %v", follow, up, c.follow)
			}
			if e := f.s.Status().LastError; !c.follow && !strings.Contains(e, "credentials must not go") {
				t.Errorf("error %q", e)
			}
		})
	}
}

func TestRedirects(t *testing.T) {
	var auth []string
	mux := http.NewServeMux()
	mux.Handle("/old", http.RedirectHandler("/metrics", http.StatusMovedPermanently))
	mux.HandleFunc("/loop", func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/loop", http.StatusFound) })
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, r *http.Request) {
		auth = append(auth, r.Header.Get("Authorization"))
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "a 1\n")
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	at := func(path string) config.URL { return config.URL(srv.URL + path) }

	// Within one origin credentials go along, those of the URL too.
	for _, target := range []Target{{URL: at("/old"), BearerToken: secret},
		{URL: config.URL(strings.Replace(srv.URL, "//", "//u:"+secret+"@", 1) + "/old")}} {
		target.Job, auth = "j", nil
		if got := newFixture(t, target).scrape(); got["up"].v != 1 || len(auth) != 1 || auth[0] == "" {
			t.Errorf("%s: up %v, authorization %q", target.URL, got["up"].v, auth)
		}
	}
	no := false
	f := newFixture(t, Target{Job: "j", URL: at("/old"), FollowRedirects: &no})
	if got := f.scrape(); got["up"].v != 0 || !strings.Contains(f.s.Status().LastError, "301") {
		t.Errorf("follow_redirects false: up %v, %s", got["up"].v, f.s.Status().LastError)
	}
	f = newFixture(t, Target{Job: "j", URL: at("/loop")})
	if got := f.scrape(); got["up"].v != 0 || !strings.Contains(f.s.Status().LastError, "10 redirects") {
		t.Errorf("a loop: up %v, %s", got["up"].v, f.s.Status().LastError)
	}
}

func TestOrigin(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"http://h/a", "HTTP://H:80/b", true},
		{"https://h/a", "https://h:443/", true},
		{"http://h/a", "https://h/a", false},
		{"http://h:1/a", "http://h:2/a", false},
		{"http://h/a", "http://www.h/a", false},
		{"http://[::1]:1/", "http://[::1]:1/x", true},
	} {
		a, _ := url.Parse(c.a)
		b, _ := url.Parse(c.b)
		if got := origin(a) == origin(b); got != c.same {
			t.Errorf("%s and %s: same origin %v", c.a, c.b, got)
		}
	}
}

// TestNothingShowsCredentials: neither status, log, errors nor labels have what the
// settings hide, whatever goes wrong.
func TestNothingShowsCredentials(t *testing.T) {
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	odd := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/location": // a place that can't be parsed, with what was asked in it
			w.Header().Set("Location", "http://%zz/?token="+r.URL.Query().Get("token"))
			w.WriteHeader(http.StatusFound)
		case "/away":
			http.Redirect(w, r, gone.URL+"/?token="+r.URL.Query().Get("token"), http.StatusFound)
		case "/echo":
			fmt.Fprintf(w, "metric{{{ %s %s\n", r.URL.RawQuery, r.Header.Get("Authorization"))
		default:
			http.Error(w, r.URL.RawQuery, http.StatusTeapot)
		}
	}))
	defer odd.Close()
	for _, base := range []string{gone.URL, odd.URL} {
		for _, path := range []string{"/", "/location", "/away", "/echo"} {
			var log strings.Builder
			u := strings.Replace(base, "//", "//u:"+secret+"-user@", 1) + path + "?token=" + secret + "-query&match[]=up"
			if path == "/away" {
				u = base + path + "?token=" + secret + "-query"
			}
			sink := inputtest.Sink(func(sc input.Batch) bool {
				for _, x := range sc.Samples {
					if text := fmt.Sprint(*x.Series); strings.Contains(text, secret) {
						t.Errorf("%s: labels %s", path, text)
					}
				}
				return true
			})
			s, err := New(Target{Job: "j", URL: config.URL(u)}.WithDefaults(10*time.Second),
				input.Env{Log: slog.New(slog.NewTextHandler(&log, nil)), Now: time.Now})
			if err != nil {
				t.Fatal(err)
			}
			s.Scrape(t.Context(), sink)
			st := s.Status()
			if st.Up || st.LastError == "" || st.Address == "" {
				t.Errorf("%s: status %+v", u, st)
			}
			if text := fmt.Sprintf("%+v", st) + log.String(); strings.Contains(text, secret) {
				t.Errorf("%s is shown: %s", u, text)
			}
		}
	}
}

// TestSettingsWithoutEffect: each combination in which a setting would be ignored is an
// error that names it, and none of the errors shows a password.
func TestSettingsWithoutEffect(t *testing.T) {
	ok := Target{Job: "j", URL: "http://h/"}
	for want, change := range map[string]func(*Target){
		"tls.ca_file has no effect without tls.enabled": func(t *Target) { t.URL, t.TLS = "https://h/", tlsfile.Client{CAFile: "/ca.pem"} },
		"tls.server_name has no effect":                 func(t *Target) { t.URL, t.TLS = "https://h/", tlsfile.Client{ServerName: "x"} },
		"tls.cert_file has no effect":                   func(t *Target) { t.TLS = tlsfile.Client{CertFile: "/c.pem"} },
		"tls.key_file has no effect":                    func(t *Target) { t.TLS = tlsfile.Client{KeyFile: "/k.pem"} },
		"tls.enabled has no effect on an http url":      func(t *Target) { t.TLS = tlsfile.Client{Enabled: true} },
		"/absent/ca.pem":                                func(t *Target) { t.URL, t.TLS = "https://h/", tlsfile.Client{Enabled: true, CAFile: "/absent/ca.pem"} },
		"cert_file and key_file go together":            func(t *Target) { t.URL, t.TLS = "https://h/", tlsfile.Client{Enabled: true, CertFile: "/c.pem"} },
		"password has no effect without username":       func(t *Target) { t.Password = secret },
		"bearer_token and username":                     func(t *Target) { t.BearerToken, t.Username = secret, "u" },
		"url has a user":                                func(t *Target) { t.URL, t.BearerToken = "http://u:"+secret+"@h/", secret },
		"percent-encode":                                func(t *Target) { t.URL = "http://u:" + secret + "#x@h/" },
		"want http://host":                              func(t *Target) { t.URL = "ftp://u:" + secret + "@h/" },
		"labels: job has no effect":                     func(t *Target) { t.Labels = map[string]string{"job": "x"} },
	} {
		target := ok
		change(&target)
		err := target.WithDefaults(time.Second).Validate()
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: got %v", want, err)
		}
	}
	if err := ok.WithDefaults(time.Second).Validate(); err != nil {
		t.Error(err)
	}
}
