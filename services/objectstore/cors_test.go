package objectstore_test

import (
	"net/http"
	"strings"
	"testing"
)

const corsRules = `<CORSConfiguration>
<CORSRule><ID>one</ID><AllowedOrigin>https://*.example.com</AllowedOrigin><AllowedMethod>GET</AllowedMethod><AllowedMethod>PUT</AllowedMethod><AllowedHeader>x-amz-*</AllowedHeader><AllowedHeader>content-type</AllowedHeader><ExposeHeader>x-amz-request-id</ExposeHeader><MaxAgeSeconds>60</MaxAgeSeconds></CORSRule>
<CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod></CORSRule>
</CORSConfiguration>`

// roundTrip sends a request and gives the answer's head.
func roundTrip(t *testing.T, r *http.Request) *http.Response {
	t.Helper()
	resp, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp
}

func preflight(t *testing.T, url, origin, method, headers string) *http.Response {
	t.Helper()
	r, err := http.NewRequest(http.MethodOptions, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]string{"Origin": origin, "Access-Control-Request-Method": method, "Access-Control-Request-Headers": headers} {
		if v != "" {
			r.Header.Set(name, v)
		}
	}
	return roundTrip(t, r)
}

func TestCORS(t *testing.T) {
	cfg := testConfig(t.TempDir())
	s := start(t, cfg)
	g, base := newSigner, s.url()+"/"+bucket
	object := base + "/k"
	put(t, s.client(), "k", []byte("x"))
	if r := preflight(t, object, "https://a.example.com", "GET", ""); r.StatusCode != 403 {
		t.Errorf("without rules: %d", r.StatusCode)
	}
	if st, _, b := send(t, g().request("PUT", base+"?cors=", []byte(corsRules))); st != 200 {
		t.Fatalf("set the rules: %d %s", st, b)
	}
	s.stop()
	s = start(t, cfg) // they outlive a restart
	base = s.url() + "/" + bucket
	object = base + "/k"
	if st, _, b := send(t, g().request("GET", base+"?cors=", nil)); st != 200 || strings.Count(string(b), "<CORSRule>") != 2 || !strings.Contains(string(b), "<MaxAgeSeconds>60</MaxAgeSeconds>") {
		t.Errorf("the rules: %d %s", st, b)
	}
	for _, c := range []struct {
		origin, method, headers string
		status                  int
		allowed, named          string
	}{
		{"https://a.example.com", "PUT", "X-Amz-Date, Content-Type", 200, "https://a.example.com", "x-amz-date, content-type"},
		{"https://a.example.com", "GET", "", 200, "https://a.example.com", ""},
		{"https://elsewhere.org", "GET", "", 200, "*", ""},
		{"https://elsewhere.org", "GET", "x-amz-date", 403, "", ""},
		{"https://elsewhere.org", "PUT", "", 403, "", ""},
		{"https://a.example.com", "PUT", "authorization", 403, "", ""},
		{"https://a.example.com.org", "PUT", "", 403, "", ""},
		{"https://a.example.com", "PATCH", "", 400, "", ""},
		{"", "GET", "", 400, "", ""},
		{"https://a.example.com", "GET", "no header", 400, "", ""},
	} {
		r := preflight(t, object, c.origin, c.method, c.headers)
		if r.StatusCode != c.status || r.Header.Get("Access-Control-Allow-Origin") != c.allowed || r.Header.Get("Access-Control-Allow-Headers") != c.named {
			t.Errorf("%+v: %d %v", c, r.StatusCode, r.Header)
		}
		if c.status == 200 && r.Header.Get("Vary") == "" {
			t.Errorf("%+v: the answer does not say that it varies", c)
		}
	}
	// Answers have the headers, those of errors too.
	for _, c := range []struct {
		r       *http.Request
		status  int
		allowed string
	}{
		{g().request("GET", object, nil, "Origin", "https://a.example.com"), 200, "https://a.example.com"},
		{g().request("GET", object+"/absent", nil, "Origin", "https://a.example.com"), 404, "https://a.example.com"},
		{g().request("GET", object, nil, "Origin", "https://elsewhere.org"), 200, "*"},
		{g().request("PUT", object, []byte("y"), "Origin", "https://elsewhere.org"), 200, ""},
		{g().request("GET", object, nil), 200, ""},
	} {
		r := roundTrip(t, c.r)
		if r.StatusCode != c.status || r.Header.Get("Access-Control-Allow-Origin") != c.allowed {
			t.Errorf("%s %s: %d %v", c.r.Method, c.r.URL, r.StatusCode, r.Header)
		}
	}
	anonymous, _ := http.NewRequest("GET", object, nil)
	anonymous.Header.Set("Origin", "https://a.example.com")
	if r := roundTrip(t, anonymous); r.StatusCode != 403 || r.Header.Get("Access-Control-Allow-Origin") == "" {
		t.Errorf("an error before authentication: %d %v", r.StatusCode, r.Header)
	}
	if st, _, _ := send(t, g().request("DELETE", base+"?cors=", nil)); st != 204 {
		t.Errorf("delete the rules: %d", st)
	}
	if r := preflight(t, object, "https://a.example.com", "GET", ""); r.StatusCode != 403 {
		t.Errorf("without rules again: %d", r.StatusCode)
	}
}

func TestCORSRulesThatAreRefused(t *testing.T) {
	s := start(t, testConfig(t.TempDir()))
	rule := func(inner string) string {
		return "<CORSConfiguration><CORSRule>" + inner + "</CORSRule></CORSConfiguration>"
	}
	for text, want := range map[string]string{
		"<CORSConfiguration/>":                     "MalformedXML",
		rule("<AllowedMethod>GET</AllowedMethod>"): "MalformedXML",
		rule("<AllowedOrigin>*</AllowedOrigin>"):   "MalformedXML",
		rule("<AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod><AllowedMagic>x</AllowedMagic>"):     "MalformedXML",
		rule("<AllowedOrigin>*</AllowedOrigin><AllowedMethod>PATCH</AllowedMethod>"):                                 "InvalidRequest",
		rule("<AllowedOrigin>*a*</AllowedOrigin><AllowedMethod>GET</AllowedMethod>"):                                 "InvalidRequest",
		rule("<AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod><AllowedHeader>a b</AllowedHeader>"): "InvalidRequest",
	} {
		if st, code, _ := send(t, newSigner().request("PUT", s.url()+"/"+bucket+"?cors=", []byte(text))); st != 400 || code != want {
			t.Errorf("%s: %d %s, want %s", text, st, code, want)
		}
	}
	if st, code, _ := send(t, newSigner().request("GET", s.url()+"/"+bucket+"?cors=", nil)); st != 404 || code != "NoSuchCORSConfiguration" {
		t.Errorf("a refused configuration was kept: %d %s", st, code)
	}
}
