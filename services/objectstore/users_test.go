package objectstore_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"lightmetrics.dev/lightmetrics/internal/platform/tlsfile"
	"lightmetrics.dev/lightmetrics/services/objectstore"
)

// Users of the file come, change and go while the store runs. What cannot be read changes nothing.
func TestUsersFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "users.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		tlsfile.Refresh()
	}
	cfg := testConfig(t.TempDir())
	cfg.UsersFile = file
	if _, err := objectstore.New(cfg, objectstore.Deps{}); err != nil {
		t.Fatal(err)
	}
	write("users: []\n")
	s := start(t, cfg)
	put(t, s.client(), "a", []byte("x"))
	try := func(key, secret, name string, status int) {
		t.Helper()
		_, err := sdk(s.url(), key, secret).GetObject(ctx, &s3.GetObjectInput{Bucket: aws.String(bucket), Key: aws.String("a")})
		wantCode(t, err, name, status)
	}
	try("GUEST", "guest-secret-1", "InvalidAccessKeyId", 403)
	guest := func(secret, action string) string {
		return "users:\n- {name: guest, access_key_id: GUEST, secret: " + secret + ", policy: '{\"Statement\":[{\"Effect\":\"Allow\",\"Action\":\"s3:" + action + "\",\"Resource\":\"arn:aws:s3:::bucket-one/*\"}]}'}\n"
	}
	write(guest("guest-secret-1", "GetObject"))
	try("GUEST", "guest-secret-1", "", 0)
	write(guest("guest-secret-2", "GetObject"))
	try("GUEST", "guest-secret-1", "SignatureDoesNotMatch", 403)
	try("GUEST", "guest-secret-2", "", 0)
	for _, bad := range []string{"users: [", "users:\n- {name: guest, access_key_id: GUEST, secret: short}\n", "users:\n- {name: tester, access_key_id: OTHER, secret: other-secret}\n",
		"users:\n- {name: guest, access_key_id: GUEST, secret: guest-secret-3, polizy: x}\n", ""} {
		write(bad)
		try("GUEST", "guest-secret-2", "", 0)
	}
	write(guest("guest-secret-2", "PutObject"))
	try("GUEST", "guest-secret-2", "AccessDenied", 403)
	write("users: []\n")
	try("GUEST", "guest-secret-2", "AccessDenied", 403) // it is there: the file may be written at the moment
	tlsfile.Refresh()
	try("GUEST", "guest-secret-2", "InvalidAccessKeyId", 403)
	try(testKey, testSecret, "", 0)
}

// A file that was cut off, anywhere, removes nobody: most of its beginnings are refused, and of those that are whole by
// themselves none is taken at the first look. What it says when it is whole is taken then.
func TestUsersFileThatWasCut(t *testing.T) {
	for name, wrap := range map[string][2]string{"plain": {"", ""}, "with markers": {"---\n", "...\n"}} {
		t.Run(name, func(t *testing.T) {
			user := func(name string) string {
				return "- name: " + name + "\n  access_key_id: KEY" + name + "\n  secret: secret-of-" + name +
					"\n  policy: |\n    {\"Statement\":[\n    {\"Effect\":\"Allow\",\"Action\":\"s3:GetObject\",\"Resource\":\"*\"}\n    ]}\n"
			}
			before := wrap[0] + "users:\n" + user("one") + user("two") + user("three") + wrap[1]
			after := wrap[0] + "users:\n" + user("one") + user("two") + user("four") + wrap[1]
			longer := wrap[0] + "users:\n" + user("one") + user("two") + user("four") + user("five") + wrap[1]
			file := filepath.Join(t.TempDir(), "users.yaml")
			write := func(text string) {
				t.Helper()
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				tlsfile.Refresh()
			}
			write(before)
			users, err := objectstore.UsersOf(objectstore.Config{UsersFile: file})
			if err != nil {
				t.Fatal(err)
			}
			want := func(when string, names ...string) {
				t.Helper()
				got := users()
				if len(got) != len(names) {
					t.Errorf("%s: %d users, want %v", when, len(got), names)
				}
				for _, n := range names {
					if u := got["KEY"+n]; u.Name != n || u.Policy == nil {
						t.Errorf("%s: %s is missing, or its policy is", when, n)
					}
				}
			}
			want("before", "one", "two", "three")
			for n := range len(after) {
				write(after[:n])
				want(after[:n], "one", "two", "three")
			}
			marked := name == "with markers"
			write(after)
			if !marked { // it lacks a user, and may be a part
				want("at the first look", "one", "two", "three")
				tlsfile.Refresh()
			}
			want("as it is now", "one", "two", "four")
			for n := range len(longer) {
				write(longer[:n])
				want(longer[:n], "one", "two", "four")
			}
			write(longer)
			want("with one more, at once", "one", "two", "four", "five")
			write(after)
			if !marked {
				want("as it was, for the first time", "one", "two", "four", "five")
				tlsfile.Refresh()
			}
			want("as it was", "one", "two", "four")
			cut := strings.Index(after, "- name: four")
			write(after[:cut])
			want("cut between two users", "one", "two", "four")
			tlsfile.Refresh()
			if !marked {
				want("and left so", "one", "two")
			} else {
				want("and left so, with markers", "one", "two", "four")
			}
			write(strings.Replace(after, "\nusers:", "\nuser:", 1) + "---\nusers: []\n")
			tlsfile.Refresh()
			if n := len(users()); n == 0 {
				t.Error("a second document removes all")
			}
		})
	}
}
