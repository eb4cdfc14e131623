package objectstore_test

import (
	"os"
	"path/filepath"
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
	try("GUEST", "guest-secret-2", "InvalidAccessKeyId", 403)
	try(testKey, testSecret, "", 0)
}
