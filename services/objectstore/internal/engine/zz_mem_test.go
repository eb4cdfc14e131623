package engine
import ("testing";"fmt";"context";"sync";"sync/atomic";"os";"strings";"runtime")
func TestZZMem(t *testing.T){
 e:=openTest(t,Options{Dir:t.TempDir()})
 var n atomic.Int64; var wg sync.WaitGroup
 for range 128 { wg.Add(1); go func(){defer wg.Done(); for { i:=n.Add(1); if i>1000000 {return}
  b:=[]byte("0123456789"); if _,err:=e.Put(context.Background(), sized(fmt.Sprintf("accepted/v1/agent=%032x/boot=%032x/%020d-%020d.json",i%1000,i%1000,i,i),b),b,Cond{Absent:true}); err!=nil{t.Error(err);return}}}()}
 wg.Wait()
 runtime.GC()
 pr:=func(w string){b,_:=os.ReadFile("/proc/self/status"); for _,l:=range strings.Split(string(b),"\n"){ if strings.HasPrefix(l,"VmRSS")||strings.HasPrefix(l,"VmHWM"){fmt.Println(w,l)}}}
 pr("puts")
 after:="";c:=0
 for { p,err:=e.List("bkt",ListQuery{Max:1000,After:after}); if err!=nil{t.Fatal(err)}; c+=len(p.Objects); if !p.Truncated{break}; after=p.Next}
 pr(fmt.Sprint("listed ",c))
 fmt.Printf("%+v\n",e.Stats())
}
